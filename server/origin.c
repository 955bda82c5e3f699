#include "server/origin.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"

struct rebuild_at origin_at(const struct settings *s)
{
    return (struct rebuild_at){ .number = s->at_number,
                                .job = s->at_job[0] ? s->at_job : NULL,
                                .clock = s->at_clock };
}

static int check_own(const struct source *s, const struct settings *settings, uint32_t n_nodes,
                     struct err *err)
{
    if ((!s->has_checkpoint && !s->has_log) ||
        (s->n_nodes == n_nodes && s->node == settings->node))
        return 0;
    return err_set(err, PS_ECLUSTER,
                   "%.200s was written by node %u of %u, this is node %u of %u: name the "
                   "directories of all %u nodes with --restore DIR,DIR, or start with "
                   "--no-restore",
                   s->data_dir, s->node, s->n_nodes, settings->node, n_nodes, s->n_nodes);
}

int origin_open(struct origin *o, const struct file_ops *files, const struct settings *s,
                uint32_t n_nodes, void (*report)(void *arg, const char *sentence),
                struct err *err)
{
    const char *own = s->data_dir;
    const char *const *paths = (const char *const *)s->restore.items;
    uint32_t n = s->restore.n;
    struct rebuild_at at = origin_at(s);
    int status = 0;

    if (!n && own[0]) {
        paths = &own;
        n = 1;
    }
    if (s->no_restore)
        n = 0;
    o->sources = mem_alloc((n + 1) * sizeof *o->sources);
    while (o->n_sources < n && !status) {
        status = source_open(files, paths[o->n_sources], &at, report, NULL,
                             &o->sources[o->n_sources], err);
        o->n_sources++;
    }
    if (status || !n)
        return status;
    if (s->restore.n)
        return source_check_set(o->sources, paths, n, true, err);
    return check_own(&o->sources[0], s, n_nodes, err);
}

void origin_close(struct origin *o)
{
    for (uint32_t i = 0; i < o->n_sources; i++)
        source_close(&o->sources[i]);
    free(o->sources);
    *o = (struct origin){ 0 };
}

void origin_name(const struct origin *o, char ret[static CHECKPOINT_PATH_MAX])
{
    const struct source *s = o->sources;

    ret[0] = '\0';
    if (o->n_sources && s->has_checkpoint)
        snprintf(ret, CHECKPOINT_PATH_MAX, "%s", s->checkpoint.dir);
    else if (o->n_sources && s->has_log)
        snprintf(ret, CHECKPOINT_PATH_MAX, "%s", s->data_dir);
}
