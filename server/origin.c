#include "server/origin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "server/durable/beginning.h"
#include "server/durable/epochs.h"

/* --- what is told --- */

static char *print_told(const struct settings *s)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&text, &n_bytes);

    if (!out)
        abort(); /* no memory for a few words */
    if (s->no_restore)
        fprintf(out, "no-restore\n");
    for (uint32_t i = 0; i < s->restore.n; i++)
        fprintf(out, "restore %s\n", s->restore.items[i]);
    if (s->at[0])
        fprintf(out, "at %s\n", s->at);
    if (fclose(out) != 0)
        abort();
    return text;
}

static int forget(const struct origin_config *config, uint64_t epoch, struct beginning *b,
                  struct err *err)
{
    if (!b->told[0])
        return 0;
    b->told[0] = '\0';
    return beginning_write(config->files, config->settings->data_dir, epoch, b, err);
}

/* Held against what the newest epoch began with. */
static int compare(struct origin *o, const struct origin_config *config, uint64_t epoch,
                   struct err *err)
{
    const char *data_dir = config->settings->data_dir;
    struct beginning b;
    int status = beginning_read(config->files, data_dir, epoch, &b, err);

    if (!status && o->told[0])
        o->was_done = strcmp(b.told, o->told) == 0;
    else if (!status)
        status = forget(config, epoch, &b, err);
    beginning_deinit(&b);
    if (status == PS_ECORRUPT && o->told[0])
        return err_set(err, status,
                       "log/%020" PRIu64 "/BEGINNING in %.60s is damaged: it cannot be known "
                       "whether at, restore or no-restore was done already; start without them",
                       epoch, data_dir);
    return status == PS_ECORRUPT ? 0 : status;
}

static int recall(struct origin *o, const struct origin_config *config, struct err *err)
{
    uint64_t epoch;
    int status;

    if (!config->settings->data_dir[0])
        return 0;
    status = epochs_newest(config->files, config->settings->data_dir, 0, &epoch, err);
    if (!status && epoch)
        status = compare(o, config, epoch, err);
    if (!status && o->was_done)
        log_info(
            "at, restore and no-restore are what checkpoint %" PRIu64
            " began with, so they are done: going on from where that ended (a start without "
            "them makes them count again)",
            epoch);
    return status;
}

/* --- sources --- */

static int check_own(const struct origin *o, const struct origin_config *config,
                     struct err *err)
{
    const struct source *s = &o->sources[0];
    uint32_t node = config->settings->node;

    if ((!s->has_checkpoint && !s->has_log) ||
        (s->n_nodes == config->n_nodes && s->node == node))
        return 0;
    return err_set(err, PS_ECLUSTER,
                   "%.200s was written by node %u of %u, this is node %u of %u: name the "
                   "directories of all %u nodes with --restore DIR,DIR, or start with "
                   "--no-restore",
                   s->data_dir, s->node, s->n_nodes, node, config->n_nodes, s->n_nodes);
}

/* Perhaps nobody has asked for it: where --shards is not said, the cores decide. */
static void say_layout(const struct source *own, uint32_t n_shards)
{
    if ((own->has_checkpoint || own->has_log) && own->shards_per_node != n_shards)
        log_warn("%.200s is of %" PRIu32 " shards, this psd has %" PRIu32
                 ": rows and optimizer state come along, jobs begin anew",
                 own->data_dir, own->shards_per_node, n_shards);
}

static int open_source(struct origin *o, const struct origin_config *config, const char *path,
                       struct err *err)
{
    return source_open(config->files, path, &o->at, config->report, NULL,
                       &o->sources[o->n_sources++], err);
}

static int open_others(struct origin *o, const struct origin_config *config, struct err *err)
{
    const struct setting_list *paths = &config->settings->restore;
    int status = 0;

    for (uint32_t i = 0; i < paths->n && !status; i++)
        status = open_source(o, config, paths->items[i], err);
    return status ? status
                  : source_check_set(o->sources, (const char *const *)paths->items,
                                     o->n_sources, true, err);
}

int origin_look(struct origin *ret, const struct origin_config *config, struct err *err)
{
    const struct settings *s = config->settings;
    int status;

    ret->told = print_told(s);
    ret->sources = mem_alloc(SETTINGS_LIST_MAX * sizeof *ret->sources);
    status = recall(ret, config, err);
    if (status)
        return status;
    if (!ret->was_done)
        ret->at = (struct rebuild_at){ .number = s->at_number,
                                       .job = s->at_job[0] ? s->at_job : NULL,
                                       .clock = s->at_clock };
    if (!ret->was_done && s->restore.n)
        return open_others(ret, config, err);
    ret->is_own = s->data_dir[0] && (ret->was_done || !s->no_restore);
    if (!ret->is_own)
        return 0;
    status = open_source(ret, config, s->data_dir, err);
    if (!status)
        status = check_own(ret, config, err);
    if (!status)
        say_layout(&ret->sources[0], s->shards);
    return status;
}

void origin_name(const struct origin *o, char ret[static CHECKPOINT_PATH_MAX])
{
    const struct source *s = &o->sources[0];

    if (o->n_sources && s->has_checkpoint)
        snprintf(ret, CHECKPOINT_PATH_MAX, "%s", s->checkpoint.dir);
    else if (o->n_sources && s->has_log)
        snprintf(ret, CHECKPOINT_PATH_MAX, "%s", s->data_dir);
}

void origin_deinit(struct origin *o)
{
    for (uint32_t i = 0; i < o->n_sources; i++)
        source_close(&o->sources[i]);
    free(o->sources);
    free(o->told);
    *o = (struct origin){ 0 };
}
