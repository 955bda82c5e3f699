/*
 * In the order of a look at a data directory:
 *
 *     points   each checkpoint's own files
 *     logs     each shard's, of each epoch
 *     bonds    verify_bonds.h
 */
#include "deploy/psctl/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/verify_bonds.h"
#include "deploy/psctl/verify_file.h"
#include "deploy/psctl/watch.h"
#include "server/durable/epochs.h"
#include "server/store/checkpoint_links.h"
#include "server/store/shelf.h"

/* --- points --- */

static void tell_point(struct verify_report *v, struct verify_point *p, const struct err *err)
{
    static const char *const names[] = { "whole", "damaged", "unfinished", "gone" };
    const struct manifest *m = p->manifest;
    uint64_t n_rows = 0, n_bytes = 0;
    cJSON *json = cJSON_CreateObject();
    char kind[48] = "full";

    offline_add_u64(json, "number", p->number);
    if (p->is_aside)
        cJSON_AddBoolToObject(json, "aside", true);
    cJSON_AddStringToObject(json, "verdict", names[p->verdict]);
    cJSON_AddItemToArray(v->points_json, json);
    p->json = json;
    if (p->verdict == VERIFY_DAMAGED)
        verify_report_damage(v, "checkpoint %" PRIu64 ": %s", p->number, err->text);
    if (p->verdict == VERIFY_UNFINISHED)
        verify_report_say(v,
                          "note     checkpoint %" PRIu64
                          " has no manifest: it is being written, or was given up",
                          p->number);
    if (p->verdict != VERIFY_WHOLE)
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
    verify_report_say(
        v,
        "whole    checkpoint %" PRIu64 "%s: %s, %u files, %" PRIu64 " rows, %" PRIu64 " bytes",
        p->number, p->is_aside ? " (set aside)" : "", kind, m->n_files, n_rows, n_bytes);
}

/* What could not be read because psd has removed it since is no damage. */
static enum verify_verdict judge(const struct verify_report *v, const char *dir, int status)
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
static int read_point(const struct verify_report *v, struct verify_point *p, struct err *err)
{
    char dir[SHELF_PATH_MAX];
    struct checkpoint c = { 0 };
    bool unfinished;
    int status;

    verify_report_dir(v, p->number, dir);
    status = checkpoint_open_settled(v->files, dir, &c, &unfinished, err);
    if (!status) {
        p->manifest = mem_alloc(sizeof *p->manifest);
        *p->manifest = c.links[0];
        status = verify_file_all(v->files, &c, VERIFY_OWN_FILES, err);
    }
    checkpoint_close(&c);
    p->verdict = unfinished ? VERIFY_UNFINISHED : judge(v, dir, status);
    return is_about_files(status) ? 0 : status;
}

static int look_at_point(struct verify_report *v, struct verify_point *p, struct err *err)
{
    int status = read_point(v, p, err);

    if (!status)
        tell_point(v, p, err);
    return status;
}

static int look_at_points(struct verify_report *v, struct err *err)
{
    char base[SHELF_PATH_MAX];
    struct shelf_numbers numbers = { 0 };
    int status = shelf_path(v->data_dir, base, err);

    if (!status)
        status = shelf_list(v->files, base, &numbers, err);
    v->points = mem_alloc((numbers.n + 1) * sizeof *v->points);
    for (size_t i = numbers.n; i-- > 0 && !status;) {
        struct verify_point *p = &v->points[v->n_points++];

        p->number = numbers.items[i];
        status = look_at_point(v, p, err);
    }
    free(numbers.items);
    return status;
}

/* --- logs --- */

static void tell_log(struct verify_report *v, const struct verify_log *log)
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
        verify_report_damage(
            v, "log of epoch %" PRIu64 ", shard %u: %s (%u segments behind are not read)",
            log->epoch, log->shard_index, end->text, end->n_unread);
        return;
    }
    if (end->verdict == LOG_TORN)
        verify_report_say(v, "note     log of epoch %" PRIu64 ", shard %u: %s", log->epoch,
                          log->shard_index, end->text);
    if (log->n_records == 0)
        verify_report_say(v, "whole    log of epoch %" PRIu64 ", shard %u: no record",
                          log->epoch, log->shard_index);
    else
        verify_report_say(v,
                          "whole    log of epoch %" PRIu64 ", shard %u: records %" PRIu64
                          " to %" PRIu64 ", %" PRIu64 " pushes, %u segments",
                          log->epoch, log->shard_index, first, last, log->n_pushes,
                          log->n_segments);
}

static int look_at_epoch(struct verify_report *v, uint64_t epoch, struct err *err)
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

static int look_at_logs(struct verify_report *v, struct err *err)
{
    struct epochs_list epochs;
    int status = epochs_list(v->files, v->data_dir, &epochs, err);

    for (size_t i = 0; i < epochs.n && !status; i++)
        status = look_at_epoch(v, epochs.items[i], err);
    free(epochs.items);
    return status;
}

/* --- one path --- */

/* The path of one checkpoint: it, and what it is a delta to.  */
static int look_at_chain(struct verify_report *v, const char *dir, struct verify_point p,
                         struct err *err)
{
    struct checkpoint c;
    int status = checkpoint_open(v->files, dir, &c, err);

    if (!status) {
        p.manifest = &c.links[0];
        p.number = c.links[0].number;
        status = verify_file_all(v->files, &c, VERIFY_CHAIN, err);
    }
    p.verdict = judge(v, dir, status);
    if (p.verdict == VERIFY_GONE) {
        status = watch_gone(dir, err);
    } else if (is_about_files(status)) {
        tell_point(v, &p, err);
        status = 0;
    }
    checkpoint_close(&c);
    return status;
}

/* Those that were set aside: each with its chain, as no log behind them is needed any more. */
static int look_at_aside(struct verify_report *v, size_t *ret_n, struct err *err)
{
    char base[SHELF_PATH_MAX], dir[SHELF_PATH_MAX];
    struct shelf_numbers numbers = { 0 };
    int status = shelf_path(v->data_dir, base, err);

    if (!status)
        status = shelf_list_aside(v->files, base, &numbers, err);
    *ret_n = numbers.n;
    for (size_t i = numbers.n; i-- > 0 && !status;) {
        struct verify_point p = { .number = numbers.items[i], .is_aside = true };

        status = shelf_aside_path(v->data_dir, p.number, dir, err);
        if (!status)
            status = look_at_chain(v, dir, p, err);
    }
    free(numbers.items);
    return status;
}

static int look_at_dir(struct verify_report *v, struct err *err)
{
    size_t n_aside = 0;
    int status = look_at_points(v, err);

    if (!status)
        status = look_at_logs(v, err);
    if (!status)
        status = look_at_aside(v, &n_aside, err);
    if (status)
        return status;
    if (v->n_points + v->n_logs + n_aside == 0)
        return err_set(err, PS_ENOCHECKPOINT, "neither a checkpoint nor a log is in %.200s",
                       v->data_dir);
    return verify_bonds_check(v, err);
}

static bool is_checkpoint(const struct file_ops *files, const char *path)
{
    char dir[SHELF_PATH_MAX], manifest[SHELF_PATH_MAX + 16];
    int fd;

    shelf_resolve(files, path, dir);
    snprintf(manifest, sizeof manifest, "%s/MANIFEST", dir);
    if (files->open_read(files->state, manifest, &fd))
        return false;
    (void)files->close(files->state, fd);
    return true;
}

static void deinit(struct verify_report *v)
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
    struct verify_report v = { .files = files, .data_dir = path, .telling = telling };
    int status;

    if (strlen(path) >= SETTINGS_TEXT_MAX)
        return err_set(err, PS_ESETTING, "a path of more than %u bytes", SETTINGS_TEXT_MAX - 1);
    v.root = cJSON_CreateObject();
    v.points_json = cJSON_AddArrayToObject(v.root, "checkpoints");
    v.logs_json = cJSON_AddArrayToObject(v.root, "logs");
    v.damage_json = cJSON_AddArrayToObject(v.root, "damage");
    status = is_checkpoint(files, path)
                 ? look_at_chain(&v, path, (struct verify_point){ 0 }, err)
                 : look_at_dir(&v, err);
    if (!status) {
        if (v.n_damaged)
            verify_report_say(&v, "%u things are damaged", v.n_damaged);
        else
            verify_report_say(&v, "nothing is damaged");
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
        return offline_fail(&err);
    damaged = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "damage")) > 0;
    if (o->json)
        offline_print_json(json);
    else
        cJSON_Delete(json);
    return damaged ? EXIT_FAILED : EXIT_ANSWERED;
}

int verify_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)n_words;
    return offline_each(o, words[0], run_one);
}
