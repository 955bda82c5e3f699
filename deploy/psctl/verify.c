#include "deploy/psctl/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "common/number.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/verify_checkpoint.h"
#include "deploy/psctl/verify_wal.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/manifest.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_control.h"

/* Of a checkpoint's own files. UNFINISHED: it has no manifest; GONE: it has none any more. */
enum verify_verdict { VERIFY_WHOLE, VERIFY_DAMAGED, VERIFY_UNFINISHED, VERIFY_GONE };

struct point {
    uint64_t number;
    bool is_archived;
    enum verify_verdict verdict;
    struct manifest *manifest; /* owned; NULL: it cannot be read */
    cJSON *json;               /* borrowed: in points_json */
};

struct findings {
    const struct file_ops *files; /* borrowed */
    const char *data_dir;         /* borrowed */
    enum verify_output output;
    cJSON *root;                                  /* owned */
    cJSON *points_json, *logs_json, *damage_json; /* borrowed: in root */
    struct point *points;                         /* owned; ascending */
    size_t n_points;
    struct verify_wal *logs; /* owned; by epoch and shard */
    size_t n_logs;
    struct wal_control *controls; /* owned; by shard */
    uint32_t n_torn;              /* logs with a torn end */
    uint32_t n_controls;
    uint32_t n_damaged;
};

/* A line, unless quietly. */
PRINTF_LIKE(2, 3) static void print_line(const struct findings *v, const char *fmt, ...)
{
    va_list args;

    if (v->output == VERIFY_QUIETLY)
        return;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

/* A line, and an item of the JSON's list. */
PRINTF_LIKE(2, 3) static void add_damage(struct findings *v, const char *fmt, ...)
{
    char text[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    v->n_damaged++;
    cJSON_AddItemToArray(v->damage_json, cJSON_CreateString(text));
    print_line(v, "DAMAGED  %s", text);
}

/* NULL: it was not listed. */
static const struct point *find_point(const struct findings *v, uint64_t number)
{
    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].number == number)
            return &v->points[i];
    return NULL;
}

/* Of a checkpoint that was listed. */
static void point_dir(const struct findings *v, uint64_t number,
                      char ret[static DIRECTORY_PATH_MAX])
{
    ret[0] = '\0';
    (void)!directory_number_path(v->data_dir, number, ret, NULL); /* it was listed: it fits */
}

struct bonds {
    struct findings *report; /* borrowed */
    /* Owned: of checkpoints that psd has finished since the points were looked at. */
    uint64_t *new_epochs;
    size_t n_new;
};

/* --- who has come --- */

static void add_if_new(struct bonds *b, uint64_t number, struct manifest *scratch)
{
    const struct findings *v = b->report;
    const struct point *p = find_point(v, number);
    char dir[DIRECTORY_PATH_MAX];

    if (p && p->verdict != VERIFY_UNFINISHED)
        return;
    point_dir(v, number, dir);
    if (!manifest_read(v->files, dir, scratch, NULL))
        b->new_epochs[b->n_new++] = scratch->map_id;
}

static int find_new(struct bonds *b, struct err *err)
{
    const struct findings *v = b->report;
    struct directory_numbers numbers = { 0 };
    struct manifest *scratch = memory_alloc(sizeof *scratch);
    char base[DIRECTORY_PATH_MAX];
    int status = directory_path(v->data_dir, base, err);

    if (!status)
        status = directory_list(v->files, base, &numbers, err);
    b->new_epochs = memory_alloc((numbers.n + 1) * sizeof *b->new_epochs);
    for (size_t i = 0; i < numbers.n && !status; i++)
        add_if_new(b, numbers.items[i], scratch);
    free(numbers.items);
    free(scratch);
    return status;
}

static bool has_come(const struct bonds *b, uint64_t epoch)
{
    for (size_t i = 0; i < b->n_new; i++)
        if (b->new_epochs[i] == epoch)
            return true;
    return false;
}

static bool is_still_there(const struct findings *v, const struct point *p)
{
    char dir[DIRECTORY_PATH_MAX];

    point_dir(v, p->number, dir);
    return !checkpoint_is_unfinished(v->files, dir);
}

/* --- points and what they stand on --- */

static bool are_links_whole(struct findings *v, const struct point *p)
{
    const struct point *link = p;

    while (link && link->verdict == VERIFY_WHOLE && link->manifest->base)
        link = find_point(v, link->manifest->base);
    if (link && link->verdict == VERIFY_WHOLE)
        return true;
    add_damage(
        v, "restore point %" PRIu64 " is of no use: a checkpoint that it is a delta to is %s",
        p->number, link ? "damaged" : "gone");
    return false;
}

/* --- points and their logs --- */

static const struct verify_wal *find_log(const struct findings *v, uint64_t epoch,
                                         uint32_t shard)
{
    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].epoch == epoch && v->logs[i].shard_index == shard)
            return &v->logs[i];
    return NULL;
}

/* Records that psd needs no more go from the front. */
static bool is_truncated(const struct verify_wal *log, uint64_t number)
{
    return log && log->n_stretches && log->stretches[0].first > number;
}

static bool is_newest(const struct bonds *b, const struct point *p)
{
    const struct findings *v = b->report;

    for (size_t i = v->n_points; &v->points[i - 1] != p; i--)
        if (v->points[i - 1].verdict == VERIFY_WHOLE)
            return false;
    return !has_come(b, p->manifest->map_id);
}

/* Its walk's log was truncated, which psd does once a newer one is safe. */
static bool is_log_truncated(const struct bonds *b, const struct point *p)
{
    const struct manifest *m = p->manifest;

    if (is_newest(b, p))
        return false;
    for (uint32_t i = 0; i < m->n_files; i++)
        if (m->files[i].first < m->files[i].through &&
            is_truncated(find_log(b->report, m->map_id, i), m->files[i].first + 1))
            return true;
    return false;
}

static void report_truncated(const struct findings *v, const struct point *p)
{
    cJSON_AddBoolToObject(p->json, "log_cut", true);
    print_line(v,
               "note     checkpoint %" PRIu64
               " is no restore point any more, as its log is truncated: it is kept for those "
               "that are deltas to it, or about to go",
               p->number);
}

/* A file of a restore point against its shard's log. */
static void check_file(const struct bonds *b, const struct point *p, uint32_t i)
{
    struct findings *v = b->report;
    const struct shard_file_facts *f = &p->manifest->files[i];
    const struct verify_wal *log = find_log(v, p->manifest->map_id, i);
    uint64_t last = log ? verify_wal_last(log) : 0;
    uint64_t covered = log ? verify_wal_covered(log, f->first + 1) : f->first;

    if (covered < f->through)
        add_damage(v,
                   "restore point %" PRIu64 ", shard %u: needs records %" PRIu64 " to %" PRIu64
                   " of its log, %" PRIu64 " are there",
                   p->number, i, f->first + 1, f->through, covered - f->first);
    else if (last > covered && is_newest(b, p))
        add_damage(v,
                   "shard %u: between records %" PRIu64 " and %" PRIu64
                   " the log has a gap that no restore point covers",
                   i, covered, last);
}

static void check_point(const struct bonds *b, const struct point *p)
{
    struct findings *v = b->report;

    if (p->verdict != VERIFY_WHOLE || !is_still_there(v, p) || !are_links_whole(v, p))
        return;
    if (p->manifest->n_shards == 0) /* of an older psd: nothing was logged */
        return;
    if (is_log_truncated(b, p)) {
        report_truncated(v, p);
        return;
    }
    for (uint32_t i = 0; i < p->manifest->n_files; i++)
        check_file(b, p, i);
}

/* --- logs and what they begin with --- */

static bool has_point(const struct bonds *b, uint64_t epoch)
{
    const struct findings *v = b->report;

    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].verdict == VERIFY_WHOLE && v->points[i].manifest->map_id == epoch)
            return true;
    return has_come(b, epoch);
}

/* All that there is of a shard has to be in it. */
static void check_log_alone(struct findings *v, const struct verify_wal *log)
{
    const struct verify_wal_stretch *first = &log->stretches[0];

    if (first->first > 1)
        add_damage(
            v, "shard %u: the log begins with record %" PRIu64 ", and there is no checkpoint",
            log->shard_index, first->first);
    else if (verify_wal_last(log) > first->last)
        add_damage(v,
                   "shard %u: between records %" PRIu64 " and %" PRIu64
                   " the log has a gap, and there is no checkpoint",
                   log->shard_index, first->last, verify_wal_last(log));
}

/* The log of an epoch needs the checkpoint that the epoch begins with, or a later one. */
static void check_newest_epoch(const struct bonds *b)
{
    struct findings *v = b->report;
    uint64_t epoch = 0;

    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].n_records && v->logs[i].epoch > epoch)
            epoch = v->logs[i].epoch;
    if (epoch && !has_point(b, epoch))
        add_damage(v, "the log of epoch %" PRIu64 " has no checkpoint to begin with", epoch);
    for (size_t i = 0; i < v->n_logs && !epoch && v->n_points == 0; i++)
        if (v->logs[i].n_records && !has_point(b, 0))
            check_log_alone(v, &v->logs[i]);
}

/* --- logs and what their control files know --- */

static uint64_t newest_epoch(const struct bonds *b)
{
    const struct findings *v = b->report;
    uint64_t epoch = 0;

    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].n_segments && v->logs[i].epoch > epoch)
            epoch = v->logs[i].epoch;
    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].verdict == VERIFY_WHOLE && v->points[i].manifest->map_id > epoch)
            epoch = v->points[i].manifest->map_id;
    for (size_t i = 0; i < b->n_new; i++)
        epoch = b->new_epochs[i] > epoch ? b->new_epochs[i] : epoch;
    return epoch;
}

/* The last record of a shard that is in its log, or in a checkpoint. */
static uint64_t last_read(const struct findings *v, const struct verify_wal *log,
                          uint64_t epoch, uint32_t shard)
{
    uint64_t last = log ? verify_wal_last(log) : 0;

    for (size_t i = 0; i < v->n_points; i++) {
        const struct manifest *m = v->points[i].manifest;

        if (v->points[i].verdict == VERIFY_WHOLE && m->map_id == epoch && shard < m->n_files &&
            m->files[shard].first > last)
            last = m->files[shard].first;
    }
    return last;
}

static void check_control(struct findings *v, uint32_t shard, const struct wal_control *c)
{
    const struct verify_wal *log = find_log(v, c->epoch, shard);
    uint64_t last = last_read(v, log, c->epoch, shard);
    bool has_newest = c->segment <= (log ? log->newest_segment : 0);

    if (log && verify_wal_is_damaged(log)) /* which says how far it is read */
        return;
    if (has_newest && last < c->durable)
        add_damage(v,
                   "log of epoch %" PRIu64
                   ", shard %u: it is truncated or damaged: it ends behind record %" PRIu64
                   ", byte %" PRIu64 " of %.150s; records up to %" PRIu64 " were on the disk",
                   c->epoch, shard, last, log ? log->end.offset : 0, log ? log->end.path : "",
                   c->durable);
    else if (!has_newest && (last < c->durable || !c->is_closed))
        add_damage(v,
                   "log of epoch %" PRIu64 ", shard %u: segment %020" PRIu64
                   ".psl is gone, with what was acknowledged behind record %" PRIu64,
                   c->epoch, shard, c->segment, last);
    else if (!has_newest)
        print_line(v,
                   "note     log of epoch %" PRIu64 ", shard %u: segment %020" PRIu64
                   ".psl is gone; there was nothing in it",
                   c->epoch, shard, c->segment);
}

static int stop_listing(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return 1;
}

/* Has the shard neither a log, not even an empty one, nor a control file? */
static bool is_without_log(const struct findings *v, uint64_t epoch, uint32_t shard)
{
    const struct wal_control *c = shard < v->n_controls ? &v->controls[shard] : NULL;
    char dir[WAL_PATH_MAX];

    return !(c && (c->epoch || c->segment || c->durable)) &&
           timeline_log_dir(v->data_dir, epoch, shard, dir, NULL) == 0 &&
           v->files->list(v->files->state, dir, stop_listing, NULL) == -ENOENT;
}

/* What was behind the checkpoint in a log that was removed together with its control file leaves no trace, but for the
 * logs of the other shards: psd makes all of them at once. Without those it may be the copy of a checkpoint. */
static void check_logs_are_there(struct findings *v, const struct manifest *m)
{
    uint32_t n_without = 0;

    for (uint32_t i = 0; i < m->n_files; i++)
        n_without += is_without_log(v, m->map_id, i);
    if (n_without && n_without == m->n_files)
        print_line(v,
                   "note     checkpoint %" PRIu64
                   " has no write-ahead log beside it: if one was there, what it had is lost",
                   m->number);
    for (uint32_t i = 0; i < m->n_files && n_without < m->n_files; i++)
        if (is_without_log(v, m->map_id, i))
            add_damage(v,
                       "log of epoch %" PRIu64
                       ", shard %u: it is gone, and its control file, too: what was behind "
                       "checkpoint %" PRIu64 " is lost",
                       m->map_id, i, m->number);
}

static void check_newest_logs(const struct bonds *b)
{
    struct findings *v = b->report;

    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].verdict == VERIFY_WHOLE && v->points[i].manifest->n_shards &&
            is_newest(b, &v->points[i]))
            check_logs_are_there(v, v->points[i].manifest);
}

static void check_controls(const struct bonds *b)
{
    struct findings *v = b->report;

    wal_control_keep_newest(v->controls, v->n_controls, newest_epoch(b));
    check_newest_logs(b);
    for (uint32_t i = 0; i < v->n_controls; i++)
        if (v->controls[i].segment || v->controls[i].durable)
            check_control(v, i, &v->controls[i]);
}

/* After all points and logs. psd may have gone on meanwhile: its newer checkpoints count, unread. -ENOMEM; what files
 * answer. */
static int verify_bonds_check(struct findings *v, struct err *err)
{
    struct bonds b = { .report = v };
    int status = find_new(&b, err);

    for (size_t i = 0; i < v->n_points && !status; i++)
        check_point(&b, &v->points[i]);
    if (!status) {
        check_newest_epoch(&b);
        check_controls(&b);
    }
    free(b.new_epochs);
    return status;
}

/*
 * In the order of a scan of a data directory:
 *
 *     points   each checkpoint's own files
 *     logs     each shard's, of each epoch
 *     bonds    what checkpoints and logs need of each other (verify.h)
 */

/* --- points --- */

static void report_point(struct findings *v, struct point *p, const struct err *err)
{
    static const char *const names[] = { "whole", "damaged", "unfinished", "gone" };
    const struct manifest *m = p->manifest;
    uint64_t n_rows = 0, n_bytes = 0;
    cJSON *json = cJSON_CreateObject();
    char kind[48] = "full";

    data_dir_add_u64(json, "number", p->number);
    if (p->is_archived)
        cJSON_AddBoolToObject(json, "aside", true);
    cJSON_AddStringToObject(json, "verdict", names[p->verdict]);
    cJSON_AddItemToArray(v->points_json, json);
    p->json = json;
    if (p->verdict == VERIFY_DAMAGED)
        add_damage(v, "checkpoint %" PRIu64 ": %s", p->number, err->text);
    if (p->verdict == VERIFY_UNFINISHED)
        print_line(v,
                   "note     checkpoint %" PRIu64
                   " has no manifest: it is being written, or was given up",
                   p->number);
    if (p->verdict != VERIFY_WHOLE)
        return;
    for (uint32_t i = 0; i < m->n_files; i++) {
        n_rows += m->files[i].n_rows;
        n_bytes += m->files[i].n_bytes;
    }
    data_dir_add_u64(json, "rows", n_rows);
    data_dir_add_u64(json, "bytes", n_bytes);
    data_dir_add_u64(json, "base", m->base);
    if (m->base)
        snprintf(kind, sizeof kind, "delta to %" PRIu64, m->base);
    print_line(v,
               "whole    checkpoint %" PRIu64 "%s: %s, %u file%s, %" PRIu64 " row%s, %" PRIu64
               " byte%s",
               p->number, p->is_archived ? " (archived)" : "", kind, m->n_files,
               NUMBER_PLURAL(m->n_files), n_rows, NUMBER_PLURAL(n_rows), n_bytes,
               NUMBER_PLURAL(n_bytes));
}

/* What could not be read because psd has removed it since is no damage. */
static enum verify_verdict verdict_of(const struct findings *v, const char *dir, int status)
{
    if (!status)
        return VERIFY_WHOLE;
    return checkpoint_is_unfinished(v->files, dir) ? VERIFY_GONE : VERIFY_DAMAGED;
}

/* Permission, memory: says nothing about the files. */
static bool is_about_files(int status)
{
    return !status || checkpoint_is_damage(status);
}

/* Its verdict, in p; a failure is about this process. */
static int read_point(const struct findings *v, struct point *p, struct err *err)
{
    char dir[DIRECTORY_PATH_MAX];
    struct checkpoint c = { 0 };
    bool unfinished;
    int status;

    point_dir(v, p->number, dir);
    status = checkpoint_open_live(v->files, dir, &c, &unfinished, err);
    if (!status) {
        p->manifest = memory_alloc(sizeof *p->manifest);
        *p->manifest = c.links[0];
        status = verify_checkpoint_all(v->files, &c, VERIFY_OWN_FILES, err);
    }
    checkpoint_close(&c);
    p->verdict = unfinished ? VERIFY_UNFINISHED : verdict_of(v, dir, status);
    return is_about_files(status) ? 0 : status;
}

static int scan_point(struct findings *v, struct point *p, struct err *err)
{
    int status = read_point(v, p, err);

    if (!status)
        report_point(v, p, err);
    return status;
}

static int scan_points(struct findings *v, struct err *err)
{
    char base[DIRECTORY_PATH_MAX];
    struct directory_numbers numbers = { 0 };
    int status = directory_path(v->data_dir, base, err);

    if (!status)
        status = directory_list(v->files, base, &numbers, err);
    v->points = memory_alloc((numbers.n + 1) * sizeof *v->points);
    for (size_t i = numbers.n; i-- > 0 && !status;) {
        struct point *p = &v->points[v->n_points++];

        p->number = numbers.items[i];
        status = scan_point(v, p, err);
    }
    free(numbers.items);
    return status;
}

/* --- logs --- */

static void report_log(struct findings *v, const struct verify_wal *log)
{
    const struct wal_end *end = &log->end;
    uint64_t last = verify_wal_last(log),
             first = log->n_stretches ? log->stretches[0].first : 0;
    cJSON *json = cJSON_CreateObject();

    data_dir_add_u64(json, "epoch", log->epoch);
    data_dir_add_u64(json, "shard", log->shard_index);
    data_dir_add_u64(json, "segments", log->n_segments);
    data_dir_add_u64(json, "first", first);
    data_dir_add_u64(json, "last", last);
    data_dir_add_u64(json, "records", log->n_records);
    data_dir_add_u64(json, "pushes", log->n_pushes);
    data_dir_add_u64(json, "gaps", log->n_stretches ? log->n_stretches - 1 : 0);
    cJSON_AddStringToObject(json, "verdict", wal_reader_verdict_name(end->verdict));
    cJSON_AddItemToArray(v->logs_json, json);
    if (log->header_text[0])
        add_damage(v, "log of epoch %" PRIu64 ", shard %u: %s", log->epoch, log->shard_index,
                   log->header_text);
    if (verify_wal_is_damaged(log)) {
        add_damage(
            v, "log of epoch %" PRIu64 ", shard %u: %s (of segments behind it %u %s not read)",
            log->epoch, log->shard_index, end->text, end->n_unread,
            end->n_unread == 1 ? "is" : "are");
        return;
    }
    if (end->verdict == WAL_TORN) {
        print_line(v, "note     log of epoch %" PRIu64 ", shard %u: %s", log->epoch,
                   log->shard_index, end->text);
        v->n_torn++;
    }
    if (log->n_records == 0)
        print_line(v, "whole    log of epoch %" PRIu64 ", shard %u: no record", log->epoch,
                   log->shard_index);
    else
        print_line(v,
                   "whole    log of epoch %" PRIu64 ", shard %u: records %" PRIu64
                   " to %" PRIu64 ", %" PRIu64 " push%s, %u segment%s",
                   log->epoch, log->shard_index, first, last, log->n_pushes,
                   log->n_pushes == 1 ? "" : "es", log->n_segments,
                   NUMBER_PLURAL(log->n_segments));
}

static int scan_epoch(struct findings *v, uint64_t epoch, struct err *err)
{
    uint32_t n_shards;
    int status = timeline_n_shards(v->files, v->data_dir, epoch, &n_shards, err);

    for (uint32_t i = 0; i < n_shards && !status; i++) {
        struct verify_wal *all = memory_try_realloc(v->logs, (v->n_logs + 1) * sizeof *all);

        if (!all)
            return err_set(err, -ENOMEM, "no memory to list the logs of %.200s", v->data_dir);
        v->logs = all;
        status = verify_wal_read(v->files, v->data_dir, epoch, i, &all[v->n_logs], err);
        if (!status)
            report_log(v, &v->logs[v->n_logs++]);
    }
    return status;
}

static int scan_logs(struct findings *v, struct err *err)
{
    struct timeline_list timelines;
    int status = timeline_list(v->files, v->data_dir, &timelines, err);

    for (size_t i = 0; i < timelines.n && !status; i++)
        status = scan_epoch(v, timelines.items[i], err);
    free(timelines.items);
    return status;
}

/* --- control files: before the logs, which psd may write meanwhile --- */

static void on_damaged_control(void *arg, const char *sentence)
{
    add_damage(arg, "%s", sentence);
}

static int scan_controls(struct findings *v, struct err *err)
{
    return wal_control_read_all(v->files, v->data_dir, on_damaged_control, v, &v->controls,
                                &v->n_controls, err);
}

/* --- one path --- */

/* The path of one checkpoint: it, and what it is a delta to.  */
static int scan_chain(struct findings *v, const char *dir, struct point p, struct err *err)
{
    struct checkpoint c;
    int status = checkpoint_open(v->files, dir, &c, err);

    if (!status) {
        p.manifest = &c.links[0];
        p.number = c.links[0].number;
        status = verify_checkpoint_all(v->files, &c, VERIFY_CHAIN, err);
    }
    p.verdict = verdict_of(v, dir, status);
    if (p.verdict == VERIFY_GONE) {
        status = retry_scan_gone(dir, err);
    } else if (is_about_files(status)) {
        report_point(v, &p, err);
        status = 0;
    }
    checkpoint_close(&c);
    return status;
}

/* Archived checkpoints: each with its chain, as no log behind them is needed any more. */
static int scan_archived(struct findings *v, size_t *ret_n, struct err *err)
{
    char base[DIRECTORY_PATH_MAX], dir[DIRECTORY_PATH_MAX];
    struct directory_numbers numbers = { 0 };
    int status = directory_path(v->data_dir, base, err);

    if (!status)
        status = directory_list_archived(v->files, base, &numbers, err);
    *ret_n = numbers.n;
    for (size_t i = numbers.n; i-- > 0 && !status;) {
        struct point p = { .number = numbers.items[i], .is_archived = true };

        status = directory_archived_path(v->data_dir, p.number, dir, err);
        if (!status)
            status = scan_chain(v, dir, p, err);
    }
    free(numbers.items);
    return status;
}

static int scan_dir(struct findings *v, struct err *err)
{
    size_t n_archived = 0;
    int status = scan_controls(v, err);

    if (!status)
        status = scan_points(v, err);
    if (!status)
        status = scan_logs(v, err);
    if (!status)
        status = scan_archived(v, &n_archived, err);
    if (status)
        return status;
    if (v->n_points + v->n_logs + n_archived + v->n_controls == 0 && access(v->data_dir, F_OK))
        return err_set(err, PS_ENOCHECKPOINT, "no such directory: %.200s", v->data_dir);
    if (v->n_points + v->n_logs + n_archived + v->n_controls == 0)
        return err_set(err, PS_ENOCHECKPOINT, "neither a checkpoint nor a log is in %.200s",
                       v->data_dir);
    return verify_bonds_check(v, err);
}

static bool is_checkpoint(const struct file_ops *files, const char *path)
{
    char dir[DIRECTORY_PATH_MAX], manifest[DIRECTORY_PATH_MAX + 16];
    int fd;

    directory_resolve(files, path, dir);
    snprintf(manifest, sizeof manifest, "%s/MANIFEST", dir);
    if (files->open_read(files->state, manifest, &fd))
        return false;
    (void)files->close(files->state, fd);
    return true;
}

static void deinit(struct findings *v)
{
    cJSON_Delete(v->root);
    for (size_t i = 0; i < v->n_points; i++)
        free(v->points[i].manifest);
    for (size_t i = 0; i < v->n_logs; i++)
        verify_wal_free(&v->logs[i]);
    free(v->points);
    free(v->logs);
    free(v->controls);
}

int verify_path(const struct file_ops *files, const char *path, enum verify_output output,
                cJSON **ret_json, struct err *err)
{
    struct findings v = { .files = files, .data_dir = path, .output = output };
    int status;

    if (strlen(path) >= SETTINGS_TEXT_MAX)
        return err_set(err, PS_ESETTING, "a path of more than %u bytes", SETTINGS_TEXT_MAX - 1);
    v.root = cJSON_CreateObject();
    v.points_json = cJSON_AddArrayToObject(v.root, "checkpoints");
    v.logs_json = cJSON_AddArrayToObject(v.root, "logs");
    v.damage_json = cJSON_AddArrayToObject(v.root, "damage");
    status = is_checkpoint(files, path) ? scan_chain(&v, path, (struct point){ 0 }, err)
                                        : scan_dir(&v, err);
    if (!status) {
        if (v.n_damaged)
            print_line(&v, "%u things are damaged", v.n_damaged);
        else if (v.n_torn)
            print_line(&v, "nothing is damaged; %u logs end torn, and what came behind is lost",
                       v.n_torn);
        else
            print_line(&v, "nothing is damaged");
        *ret_json = v.root;
        v.root = NULL;
    }
    deinit(&v);
    return status;
}

static int run_one(const struct options *o, const char *path)
{
    struct err err = { 0 };
    cJSON *json = NULL;
    bool damaged;

    err.status =
        verify_path(&file_os, path, o->json ? VERIFY_QUIETLY : VERIFY_LINES, &json, &err);
    if (err.status)
        return data_dir_fail(&err);
    damaged = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "damage")) > 0;
    if (o->json)
        data_dir_print_json(json);
    else
        cJSON_Delete(json);
    return damaged ? EXIT_FAILED : EXIT_ANSWERED;
}

int verify_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)n_words;
    return data_dir_each(o, words[0], run_one);
}
