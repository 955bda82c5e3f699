/*
 * In the order of a look at a data directory:
 *
 *     points   each checkpoint's own files
 *     logs     each shard's, of each epoch
 *     bonds    each restore point: are its links whole, is its log there, from its walk's first moment on?
 */
#include "deploy/psctl/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/verify_file.h"
#include "deploy/psctl/verify_log.h"
#include "deploy/psctl/watch.h"
#include "server/durable/epochs.h"
#include "server/store/checkpoint_links.h"
#include "server/store/shelf.h"

enum verdict { WHOLE, DAMAGED, UNFINISHED, GONE };

struct point {
    uint64_t number;
    enum verdict verdict;
    struct manifest *manifest; /* owned; NULL: it cannot be read */
};

struct verify {
    const struct file_ops *files;
    const char *data_dir;
    enum verify_telling telling;
    cJSON *root, *points_json, *logs_json, *damage_json; /* root is owned */
    struct point *points;                                /* owned; ascending */
    size_t n_points;
    struct verify_log *logs; /* owned; by epoch and shard */
    size_t n_logs;
    uint32_t n_damaged;
};

/* --- telling --- */

PRINTF_LIKE(2, 3) static void say(const struct verify *v, const char *fmt, ...)
{
    va_list args;

    if (v->telling == VERIFY_QUIETLY)
        return;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

PRINTF_LIKE(2, 3) static void damage(struct verify *v, const char *fmt, ...)
{
    char text[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    v->n_damaged++;
    cJSON_AddItemToArray(v->damage_json, cJSON_CreateString(text));
    say(v, "DAMAGED  %s", text);
}

/* --- points --- */

static void point_dir(const struct verify *v, uint64_t number, char ret[static SHELF_PATH_MAX])
{
    ret[0] = '\0';
    (void)!shelf_number_path(v->data_dir, number, ret, NULL); /* it was listed: it fits */
}

static void tell_point(struct verify *v, const struct point *p, const struct err *err)
{
    static const char *const names[] = { "whole", "damaged", "unfinished", "gone" };
    const struct manifest *m = p->manifest;
    uint64_t n_rows = 0, n_bytes = 0;
    cJSON *json = cJSON_CreateObject();
    char kind[48] = "full";

    offline_add_u64(json, "number", p->number);
    cJSON_AddStringToObject(json, "verdict", names[p->verdict]);
    cJSON_AddItemToArray(v->points_json, json);
    if (p->verdict == DAMAGED)
        damage(v, "checkpoint %" PRIu64 ": %s", p->number, err->text);
    if (p->verdict == UNFINISHED)
        say(v,
            "note     checkpoint %" PRIu64
            " has no manifest: it is being written, or was given up",
            p->number);
    if (p->verdict != WHOLE)
        return;
    for (uint32_t i = 0; i < m->n_files; i++) {
        n_rows += m->files[i].n_rows;
        n_bytes += m->files[i].n_bytes;
    }
    offline_add_u64(json, "rows", n_rows);
    offline_add_u64(json, "bytes", n_bytes);
    offline_add_u64(json, "base", m->base);
    if (m->base)
        snprintf(kind, sizeof kind, "delta to %" PRIu64, m->base);
    say(v, "whole    checkpoint %" PRIu64 ": %s, %u files, %" PRIu64 " rows, %" PRIu64 " bytes",
        p->number, kind, m->n_files, n_rows, n_bytes);
}

/* What could not be read because psd has removed it since is no damage. */
static enum verdict judge(const struct verify *v, const char *dir, int status)
{
    if (!status)
        return WHOLE;
    return checkpoint_is_unfinished(v->files, dir) ? GONE : DAMAGED;
}

/* Permission, memory: says nothing about the files. */
static bool is_about_files(int status)
{
    return !status || checkpoint_is_damage(status);
}

/* Its verdict, in p; a failure is about this process. */
static int read_point(const struct verify *v, struct point *p, struct err *err)
{
    char dir[SHELF_PATH_MAX];
    struct checkpoint c = { 0 };
    bool unfinished;
    int status;

    point_dir(v, p->number, dir);
    status = checkpoint_open_settled(v->files, dir, &c, &unfinished, err);
    if (!status) {
        p->manifest = mem_alloc(sizeof *p->manifest);
        *p->manifest = c.links[0];
        status = verify_file_all(v->files, &c, VERIFY_OWN_FILES, err);
    }
    checkpoint_close(&c);
    p->verdict = unfinished ? UNFINISHED : judge(v, dir, status);
    return is_about_files(status) ? 0 : status;
}

static int look_at_point(struct verify *v, struct point *p, struct err *err)
{
    int status = read_point(v, p, err);

    if (!status)
        tell_point(v, p, err);
    return status;
}

static int look_at_points(struct verify *v, struct err *err)
{
    char base[SHELF_PATH_MAX];
    struct shelf_numbers numbers = { 0 };
    int status = shelf_path(v->data_dir, base, err);

    if (!status)
        status = shelf_list(v->files, base, &numbers, err);
    v->points = mem_alloc((numbers.n + 1) * sizeof *v->points);
    for (size_t i = numbers.n; i-- > 0 && !status;) {
        struct point *p = &v->points[v->n_points++];

        p->number = numbers.items[i];
        status = look_at_point(v, p, err);
    }
    free(numbers.items);
    return status;
}

/* --- logs --- */

static void tell_log(struct verify *v, const struct verify_log *log)
{
    const struct log_end *end = &log->end;
    uint64_t last = verify_log_last(log),
             first = log->n_stretches ? log->stretches[0].first : 0;
    cJSON *json = cJSON_CreateObject();

    offline_add_u64(json, "epoch", log->epoch);
    offline_add_u64(json, "shard", log->shard_index);
    offline_add_u64(json, "segments", log->n_segments);
    offline_add_u64(json, "first", first);
    offline_add_u64(json, "last", last);
    offline_add_u64(json, "records", log->n_records);
    offline_add_u64(json, "pushes", log->n_pushes);
    offline_add_u64(json, "gaps", log->n_stretches ? log->n_stretches - 1 : 0);
    cJSON_AddStringToObject(json, "verdict", log_verdict_name(end->verdict));
    cJSON_AddItemToArray(v->logs_json, json);
    if (verify_log_is_damaged(log)) {
        damage(v, "log of epoch %" PRIu64 ", shard %u: %s (%u segments behind are not read)",
               log->epoch, log->shard_index, end->text, end->n_unread);
        return;
    }
    if (end->verdict == LOG_TORN)
        say(v, "note     log of epoch %" PRIu64 ", shard %u: %s", log->epoch, log->shard_index,
            end->text);
    if (log->n_records == 0)
        say(v, "whole    log of epoch %" PRIu64 ", shard %u: no record", log->epoch,
            log->shard_index);
    else
        say(v,
            "whole    log of epoch %" PRIu64 ", shard %u: records %" PRIu64 " to %" PRIu64
            ", %" PRIu64 " pushes, %u segments",
            log->epoch, log->shard_index, first, last, log->n_pushes, log->n_segments);
}

static int look_at_epoch(struct verify *v, uint64_t epoch, struct err *err)
{
    uint32_t n_shards;
    int status = epochs_n_shards(v->files, v->data_dir, epoch, &n_shards, err);

    for (uint32_t i = 0; i < n_shards && !status; i++) {
        struct verify_log *all = mem_try_realloc(v->logs, (v->n_logs + 1) * sizeof *all);

        if (!all)
            return err_set(err, -ENOMEM, "no memory to list the logs of %.200s", v->data_dir);
        v->logs = all;
        status = verify_log_read(v->files, v->data_dir, epoch, i, &all[v->n_logs], err);
        if (!status)
            tell_log(v, &v->logs[v->n_logs++]);
    }
    return status;
}

static int look_at_logs(struct verify *v, struct err *err)
{
    struct epochs_list epochs;
    int status = epochs_list(v->files, v->data_dir, &epochs, err);

    for (size_t i = 0; i < epochs.n && !status; i++)
        status = look_at_epoch(v, epochs.items[i], err);
    free(epochs.items);
    return status;
}

/* --- bonds --- */

static const struct point *find_point(const struct verify *v, uint64_t number)
{
    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].number == number)
            return &v->points[i];
    return NULL;
}

static const struct verify_log *find_log(const struct verify *v, uint64_t epoch, uint32_t shard)
{
    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].epoch == epoch && v->logs[i].shard_index == shard)
            return &v->logs[i];
    return NULL;
}

static bool are_links_whole(struct verify *v, const struct point *p)
{
    const struct point *link = p;

    while (link && link->verdict == WHOLE && link->manifest->base)
        link = find_point(v, link->manifest->base);
    if (link && link->verdict == WHOLE)
        return true;
    damage(v,
           "restore point %" PRIu64 " is of no use: a checkpoint that it is a delta to is %s",
           p->number, link ? "damaged" : "gone");
    return false;
}

/* Has psd finished a checkpoint of this epoch since the points were looked at? */
static bool has_come_since(const struct verify *v, uint64_t epoch)
{
    struct manifest *m = mem_alloc(sizeof *m);
    struct shelf_numbers numbers = { 0 };
    char path[SHELF_PATH_MAX];
    bool has_come = false;
    int status = shelf_path(v->data_dir, path, NULL);

    if (!status)
        status = shelf_list(v->files, path, &numbers, NULL);
    for (size_t i = 0; i < numbers.n && !status && !has_come; i++) {
        const struct point *p = find_point(v, numbers.items[i]);

        if (p && p->verdict != UNFINISHED)
            continue;
        point_dir(v, numbers.items[i], path);
        has_come = !manifest_read(v->files, path, m, NULL) && m->map_id == epoch;
    }
    free(numbers.items);
    free(m);
    return has_come;
}

/* A file of a restore point against its shard's log. */
static void check_file(struct verify *v, const struct point *p, uint32_t i)
{
    const struct part_facts *f = &p->manifest->files[i];
    const struct verify_log *log = find_log(v, p->manifest->map_id, i);
    uint64_t last = log ? verify_log_last(log) : 0;
    uint64_t reach = log ? verify_log_reach(log, f->first + 1) : f->first;

    if (reach < f->through)
        damage(v,
               "restore point %" PRIu64 ", shard %u: needs records %" PRIu64 " to %" PRIu64
               " of its log, %" PRIu64 " are there",
               p->number, i, f->first + 1, f->through, reach - f->first);
    else if (last > reach && p == &v->points[v->n_points - 1] &&
             !has_come_since(v, p->manifest->map_id))
        damage(v,
               "shard %u: between records %" PRIu64 " and %" PRIu64
               " the log has a hole that no restore point makes good",
               i, reach, last);
}

static bool is_still_there(const struct verify *v, const struct point *p)
{
    char dir[SHELF_PATH_MAX];

    point_dir(v, p->number, dir);
    return !checkpoint_is_unfinished(v->files, dir);
}

static bool has_point(const struct verify *v, uint64_t epoch)
{
    for (size_t i = 0; i < v->n_points; i++)
        if (v->points[i].verdict == WHOLE && v->points[i].manifest->map_id == epoch)
            return true;
    return has_come_since(v, epoch);
}

/* The log of an epoch needs the checkpoint that the epoch begins with, or a later one. */
static void check_newest_epoch(struct verify *v)
{
    uint64_t epoch = 0;

    for (size_t i = 0; i < v->n_logs; i++)
        if (v->logs[i].n_records && v->logs[i].epoch > epoch)
            epoch = v->logs[i].epoch;
    if (epoch && !has_point(v, epoch))
        damage(v, "the log of epoch %" PRIu64 " has no checkpoint to begin with", epoch);
    for (size_t i = 0; i < v->n_logs && !epoch && v->n_points == 0; i++)
        if (v->logs[i].n_records && v->logs[i].stretches[0].first > 1 && !has_point(v, 0))
            damage(v,
                   "shard %u: the log begins with record %" PRIu64
                   ", and there is no checkpoint",
                   v->logs[i].shard_index, v->logs[i].stretches[0].first);
}

static void check_bonds(struct verify *v)
{
    for (size_t i = 0; i < v->n_points; i++) {
        const struct point *p = &v->points[i];

        if (p->verdict != WHOLE || !is_still_there(v, p) || !are_links_whole(v, p))
            continue;
        for (uint32_t k = 0; k < p->manifest->n_files && p->manifest->n_shards; k++)
            check_file(v, p, k);
    }
    check_newest_epoch(v);
}

/* --- one path --- */

static int look_at_dir(struct verify *v, struct err *err)
{
    int status = look_at_points(v, err);

    if (!status)
        status = look_at_logs(v, err);
    if (status)
        return status;
    if (v->n_points == 0 && v->n_logs == 0)
        return err_set(err, PS_ENOCHECKPOINT, "neither a checkpoint nor a log is in %.200s",
                       v->data_dir);
    check_bonds(v);
    return 0;
}

/* The path of one checkpoint: it, and what it is a delta to. */
static int look_at_one(struct verify *v, struct err *err)
{
    struct point p = { 0 };
    struct checkpoint c;
    int status = checkpoint_open(v->files, v->data_dir, &c, err);

    if (!status) {
        p.manifest = &c.links[0];
        p.number = c.links[0].number;
        status = verify_file_all(v->files, &c, VERIFY_CHAIN, err);
    }
    p.verdict = judge(v, v->data_dir, status);
    if (p.verdict == GONE) {
        status = watch_gone(v->data_dir, err);
    } else if (is_about_files(status)) {
        tell_point(v, &p, err);
        status = 0;
    }
    checkpoint_close(&c);
    return status;
}

static bool is_checkpoint(const struct file_ops *files, const char *path)
{
    char manifest[SETTINGS_TEXT_MAX + 16];
    int fd;

    snprintf(manifest, sizeof manifest, "%s/MANIFEST", path);
    if (files->open_read(files->state, manifest, &fd))
        return false;
    (void)files->close(files->state, fd);
    return true;
}

static void deinit(struct verify *v)
{
    cJSON_Delete(v->root);
    for (size_t i = 0; i < v->n_points; i++)
        free(v->points[i].manifest);
    for (size_t i = 0; i < v->n_logs; i++)
        verify_log_free(&v->logs[i]);
    free(v->points);
    free(v->logs);
}

int verify_path(const struct file_ops *files, const char *path, enum verify_telling telling,
                cJSON **ret_json, struct err *err)
{
    struct verify v = { .files = files, .data_dir = path, .telling = telling };
    int status;

    if (strlen(path) >= SETTINGS_TEXT_MAX)
        return err_set(err, PS_ESETTING, "a path of more than %u bytes", SETTINGS_TEXT_MAX - 1);
    v.root = cJSON_CreateObject();
    v.points_json = cJSON_AddArrayToObject(v.root, "checkpoints");
    v.logs_json = cJSON_AddArrayToObject(v.root, "logs");
    v.damage_json = cJSON_AddArrayToObject(v.root, "damage");
    status = is_checkpoint(files, path) ? look_at_one(&v, err) : look_at_dir(&v, err);
    if (!status) {
        if (v.n_damaged)
            say(&v, "%u things are damaged", v.n_damaged);
        else
            say(&v, "nothing is damaged");
        *ret_json = v.root;
        v.root = NULL;
    }
    deinit(&v);
    return status;
}

int verify_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct err err = { 0 };
    cJSON *json = NULL;
    bool damaged;

    (void)n_words;
    err.status =
        verify_path(&file_os, words[0], o->json ? VERIFY_QUIETLY : VERIFY_LINES, &json, &err);
    if (err.status)
        return offline_fail(&err);
    damaged = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "damage")) > 0;
    if (o->json)
        offline_print_json(json);
    else
        cJSON_Delete(json);
    return damaged ? EXIT_FAILED : EXIT_ANSWERED;
}
