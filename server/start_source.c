#include "server/start_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "proto/placement.h"
#include "server/recovery/timeline.h"
#include "server/replication/terms.h"

/* --- the options at, restore and no-restore --- */

static char *print_options(const struct settings *s)
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

static int clear_options(const struct start_source_config *config, uint64_t epoch,
                         struct timeline_beginning *b, struct err *err)
{
    if (!b->options[0])
        return 0;
    b->options[0] = '\0';
    return timeline_write_beginning(config->files, config->settings->data_dir, epoch, b, err);
}

/* Of a beginning that is damaged. A start without options forgets it: nothing is known to be above, and logs without
 * a checkpoint stay. --at intact gives up nothing that can be read, so doing it again does no harm; others might. */
static int go_without(const struct start_source *o, const struct start_source_config *config,
                      uint64_t epoch, struct err *err)
{
    const char *data_dir = config->settings->data_dir;
    char nothing[1] = "";
    const struct timeline_beginning b = { .above = epoch,
                                          .has_options = true,
                                          .options = nothing };

    if (!o->options[0]) {
        log_line_warn("%s: it is written anew", err->text);
        return timeline_write_beginning(config->files, data_dir, epoch, &b, err);
    }
    if (strcmp(o->options, "at intact\n") == 0) {
        log_line_warn("%s: if at intact was done already, it is done again", err->text);
        return 0;
    }
    return err_set(err, PS_ECORRUPT,
                   "log/%020" PRIu64 "/BEGINNING in %.60s is damaged: it cannot be known "
                   "whether at, restore or no-restore was done already; start without them, or "
                   "with --at intact alone",
                   epoch, data_dir);
}

/* With the options that the newest epoch began with. */
static int compare(struct start_source *o, const struct start_source_config *config,
                   uint64_t epoch, struct err *err)
{
    struct timeline_beginning b;
    int status =
        timeline_read_beginning(config->files, config->settings->data_dir, epoch, &b, err);

    if (!status && o->options[0])
        o->was_done = strcmp(b.options, o->options) == 0;
    else if (!status)
        status = clear_options(config, epoch, &b, err);
    else if (status == PS_ECORRUPT)
        status = go_without(o, config, epoch, err);
    timeline_beginning_deinit(&b);
    return status;
}

static int recall(struct start_source *o, const struct start_source_config *config,
                  struct err *err)
{
    uint64_t epoch;
    int status;

    if (!config->settings->data_dir[0])
        return 0;
    status = timeline_newest(config->files, config->settings->data_dir, 0, &epoch, err);
    if (!status && epoch)
        status = compare(o, config, epoch, err);
    if (!status && o->was_done)
        log_line_info(
            "at, restore and no-restore are what checkpoint %" PRIu64
            " began with, so they are done: going on from where that ended (a start without "
            "them makes them count again)",
            epoch);
    return status;
}

/* --- sources --- */

/* A pair's directory is not new, however little is in it: the other member knows its shards and its term. */
static bool is_of_pair(const struct file_ops *files, const char *data_dir, uint32_t n_shards)
{
    struct terms terms = { 0 };
    struct err unwanted;
    const int status = terms_read(files, data_dir, n_shards, &terms, &unwanted);
    const bool ret = status || terms.peer[0];

    terms_deinit(&terms);
    return ret;
}

/* psd has run there, as a package starts it, and has kept nothing: no layout is to be kept either. The directory is
 * left as it is; what begins is a new epoch. */
static int pass_over_unused(struct start_source *o, const struct start_source_config *config,
                            struct err *err)
{
    struct restore_source *s = &o->sources[0];
    bool unused = false;
    int status;

    if (restore_source_is_of(s, config->node, config->n_nodes, config->settings->shards))
        return 0;
    status = restore_source_is_unused(s, config->files, &unused, err);
    if (status || !unused || is_of_pair(config->files, s->data_dir, config->settings->shards))
        return status;
    log_line_info("%.200s holds no table and no record: taken as new, though a psd as node %u "
                  "of %u has run there",
                  s->data_dir, s->node, s->n_nodes);
    restore_source_close(s);
    o->n_sources = 0;
    o->is_own = false;
    return 0;
}

static int check_own(const struct start_source *o, const struct start_source_config *config,
                     struct err *err)
{
    const struct restore_source *s = &o->sources[0];
    uint32_t node = config->node;

    if ((!s->has_checkpoint && !s->has_log) ||
        (s->n_nodes == config->n_nodes && s->node == node))
        return 0;
    return err_set(
        err, PS_ECLUSTER,
        "%.90s was written by node %u of %u, this is node %u of %u: is --data-dir or "
        "--node wrong? --restore DIR,DIR of all %u nodes takes them over, "
        "--no-restore archives them",
        s->data_dir, s->node, s->n_nodes, node, config->n_nodes, s->n_nodes);
}

static void say_layout(const struct restore_source *own, uint32_t n_shards)
{
    if ((own->has_checkpoint || own->has_log) && own->shards_per_node != n_shards)
        log_line_warn("%.200s is of %" PRIu32 " shard%s, this psd has %" PRIu32
                      ": rows and optimizer state come along, jobs begin anew (--shards)",
                      own->data_dir, own->shards_per_node, NUMBER_PLURAL(own->shards_per_node),
                      n_shards);
}

/* A data directory that cannot be opened stops the start later, with its reason. */
void start_source_choose_shards(struct settings *settings, const struct file_ops *files)
{
    const struct recover_shard_at newest = { 0 };
    struct restore_source own = { 0 };
    bool unused = false;
    uint32_t n = 0, n_nodes = settings->cluster.n ? settings->cluster.n : 1;
    struct err unwanted;

    if (!settings->shards_are_chosen || !settings->data_dir[0])
        return;
    if (restore_source_open(files, settings->data_dir, &newest, NULL, NULL, &own, &unwanted) ==
            0 &&
        restore_source_is_unused(&own, files, &unused, &unwanted) == 0)
        n = (!unused || is_of_pair(files, settings->data_dir, settings->shards)) &&
                    (own.has_checkpoint || own.has_log)
                ? own.shards_per_node
                : 0;
    restore_source_close(&own);
    if (n == 0 || n == settings->shards || n * n_nodes > PLACEMENT_N_SHARDS_MAX)
        return;
    log_line_info("%" PRIu32 " shard%s, as %.200s has, though %" PRIu32
                  " would fit the cores: --shards changes it, and then jobs begin anew",
                  n, NUMBER_PLURAL(n), settings->data_dir, settings->shards);
    settings->shards = n;
}

static int open_source(struct start_source *o, const struct start_source_config *config,
                       const char *path, struct err *err)
{
    return restore_source_open(config->files, path, &o->at, config->report, NULL,
                               &o->sources[o->n_sources++], err);
}

static int open_others(struct start_source *o, const struct start_source_config *config,
                       struct err *err)
{
    const struct setting_list *paths = &config->settings->restore;
    int status = 0;

    for (uint32_t i = 0; i < paths->n && !status; i++)
        status = open_source(o, config, paths->items[i], err);
    return status ? status
                  : restore_source_check_set(o->sources, (const char *const *)paths->items,
                                             o->n_sources, true, err);
}

int start_source_find(struct start_source *ret, const struct start_source_config *config,
                      struct err *err)
{
    const struct settings *s = config->settings;
    int status;

    ret->options = print_options(s);
    ret->sources = memory_alloc(SETTINGS_LIST_MAX * sizeof *ret->sources);
    status = recall(ret, config, err);
    if (status)
        return status;
    if (!ret->was_done)
        ret->at = (struct recover_shard_at){ .number = s->at_number,
                                             .job = s->at_job[0] ? s->at_job : NULL,
                                             .clock = s->at_clock,
                                             .intact = s->at_intact };
    if (!ret->was_done && s->restore.n)
        return open_others(ret, config, err);
    ret->is_own = s->data_dir[0] && (ret->was_done || !s->no_restore);
    if (!ret->is_own)
        return 0;
    status = open_source(ret, config, s->data_dir, err);
    if (!status)
        status = pass_over_unused(ret, config, err);
    if (!status && ret->is_own)
        status = check_own(ret, config, err);
    if (!status && ret->is_own)
        say_layout(&ret->sources[0], s->shards);
    return status;
}

void start_source_name(const struct start_source *o, char ret[static CHECKPOINT_PATH_MAX])
{
    const struct restore_source *s = &o->sources[0];

    if (o->n_sources && s->has_checkpoint)
        snprintf(ret, CHECKPOINT_PATH_MAX, "%s", s->checkpoint.dir);
    else if (o->n_sources && s->has_log)
        snprintf(ret, CHECKPOINT_PATH_MAX, "%s", s->data_dir);
}

void start_source_deinit(struct start_source *o)
{
    for (uint32_t i = 0; i < o->n_sources; i++)
        restore_source_close(&o->sources[i]);
    free(o->sources);
    free(o->options);
    *o = (struct start_source){ 0 };
}
