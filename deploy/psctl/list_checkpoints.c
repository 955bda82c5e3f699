#include "deploy/psctl/list_checkpoints.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/text_grid.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/recovery/timeline.h"

#define SCANS_MAX 16u

struct list_checkpoints {
    bool json;
    cJSON *root;
    struct text_grid grid;
    uint32_t n_added, n_absent; /* absent: no manifest yet, or no more */
};

struct point {
    const struct manifest *manifest; /* borrowed */
    uint64_t n_rows, n_bytes;
    bool is_log_truncated, is_archived;
};

static const char *const heads[] = { "NUMBER", "<WHEN", "<KIND", "SHARDS",
                                     "ROWS",   "BYTES", "<JOBS" };

static void format_jobs(const struct manifest *m, char *dst, size_t dst_bytes)
{
    size_t len = 0;

    snprintf(dst, dst_bytes, "-");
    for (uint32_t i = 0; i < m->n_jobs && len < dst_bytes; i++)
        len += (size_t)snprintf(dst + len, dst_bytes - len, "%s%s:%" PRIu64, i ? " " : "",
                                m->jobs[i].name, m->jobs[i].min_clock);
}

/* A walk whose log is truncated is no state: the checkpoint is kept for those that are deltas to it. */
static bool is_log_truncated(const char *data_dir, const struct manifest *m)
{
    struct wal_segments segments;
    char dir[WAL_PATH_MAX];
    bool is_truncated = false;

    for (uint32_t i = 0; i < m->n_files && m->n_shards && !is_truncated; i++) {
        if (m->files[i].first == m->files[i].through ||
            timeline_log_dir(data_dir, m->map_id, i, dir, NULL))
            continue;
        is_truncated = wal_segment_list(&file_os, dir, &segments, NULL) == 0 && segments.n &&
                       segments.firsts[0] > m->files[i].first + 1;
        free(segments.firsts);
    }
    return is_truncated;
}

static void add_to_grid(struct list_checkpoints *p, const struct point *point)
{
    const struct manifest *m = point->manifest;
    const char *truncated = point->is_log_truncated ? ", no start: log truncated" : "";
    const char *archived = point->is_archived ? ", archived" : "";
    char when[40] = "-", jobs[400];
    time_t seconds = (time_t)(m->unix_ms / 1000);
    struct tm local;

    if (localtime_r(&seconds, &local))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    format_jobs(m, jobs, sizeof jobs);
    text_grid_add(&p->grid, "%" PRIu64, m->number);
    text_grid_add(&p->grid, "%s", when);
    if (m->base)
        text_grid_add(&p->grid, "delta to %" PRIu64 "%s%s", m->base, archived, truncated);
    else
        text_grid_add(&p->grid, "full%s%s", archived, truncated);
    text_grid_add(&p->grid, "%u", m->n_files);
    text_grid_add(&p->grid, "%" PRIu64, point->n_rows);
    text_grid_add(&p->grid, "%" PRIu64, point->n_bytes);
    text_grid_add(&p->grid, "%s", jobs);
}

static void add_to_json(struct list_checkpoints *p, const struct point *point)
{
    const struct manifest *m = point->manifest;
    cJSON *item = cJSON_CreateObject(), *jobs;

    data_dir_add_u64(item, "number", m->number);
    data_dir_add_u64(item, "unix_ms", m->unix_ms);
    data_dir_add_u64(item, "base", m->base);
    data_dir_add_u64(item, "node", m->node);
    data_dir_add_u64(item, "nodes", m->n_nodes);
    data_dir_add_u64(item, "shards_per_node", m->shards_per_node);
    data_dir_add_u64(item, "epoch", m->map_id);
    data_dir_add_u64(item, "rows", point->n_rows);
    data_dir_add_u64(item, "bytes", point->n_bytes);
    if (point->is_log_truncated)
        cJSON_AddBoolToObject(item, "log_cut", true);
    if (point->is_archived)
        cJSON_AddBoolToObject(item, "aside", true);
    jobs = cJSON_AddArrayToObject(item, "jobs");
    for (uint32_t i = 0; i < m->n_jobs; i++) {
        cJSON *job = cJSON_CreateObject();

        cJSON_AddStringToObject(job, "name", m->jobs[i].name);
        cJSON_AddStringToObject(job, "mode", table_spec_mode_name(m->jobs[i].mode));
        data_dir_add_u64(job, "min_clock", m->jobs[i].min_clock);
        cJSON_AddItemToArray(jobs, job);
    }
    cJSON_AddItemToArray(p->root, item);
}

enum place { IN_LINE, ARCHIVED };

static void add(struct list_checkpoints *p, const char *data_dir, const struct manifest *m,
                enum place place)
{
    struct point point = { .manifest = m,
                           .is_log_truncated = is_log_truncated(data_dir, m),
                           .is_archived = place == ARCHIVED };

    p->n_added++;
    for (uint32_t i = 0; i < m->n_files; i++) {
        point.n_rows += m->files[i].n_rows;
        point.n_bytes += m->files[i].n_bytes;
    }
    if (p->json)
        add_to_json(p, &point);
    else
        add_to_grid(p, &point);
}

/* One that is damaged, or unfinished, is told and left out. */
static int add_number(struct list_checkpoints *p, const char *data_dir, uint64_t number,
                      enum place place, struct err *err)
{
    char dir[DIRECTORY_PATH_MAX];
    struct checkpoint c = { 0 };
    bool unfinished = false;
    int status = place == ARCHIVED ? directory_archived_path(data_dir, number, dir, err)
                                   : directory_number_path(data_dir, number, dir, err);

    if (!status)
        status = checkpoint_open_live(&file_os, dir, &c, &unfinished, err);
    if (!status)
        add(p, data_dir, &c.links[0], place);
    else if (unfinished || (status == -ENOENT && checkpoint_is_unfinished(&file_os, dir)))
        p->n_absent++;
    else if (checkpoint_is_damage(status))
        data_dir_note(NULL, err->text);
    checkpoint_close(&c);
    return checkpoint_is_damage(status) ? 0 : status;
}

static int add_listed(struct list_checkpoints *p, const char *data_dir, struct err *err)
{
    char base[DIRECTORY_PATH_MAX];
    struct directory_numbers numbers = { 0 }, archived = { 0 };
    int status = directory_path(data_dir, base, err);

    if (!status)
        status = directory_list(&file_os, base, &numbers, err);
    if (!status)
        status = directory_list_archived(&file_os, base, &archived, err);
    if (!status && access(data_dir, F_OK))
        status = err_set(err, PS_ENOCHECKPOINT, "no such directory: %.200s", data_dir);
    else if (!status && numbers.n + archived.n == 0)
        status = err_set(err, PS_ENOCHECKPOINT, "no checkpoint in %.200s", data_dir);
    for (size_t i = numbers.n; i-- > 0 && !status;)
        status = add_number(p, data_dir, numbers.items[i], IN_LINE, err);
    for (size_t i = archived.n; i-- > 0 && !status;)
        status = add_number(p, data_dir, archived.items[i], ARCHIVED, err);
    free(archived.items);
    free(numbers.items);
    return status;
}

/* psd may have replaced all that were listed before they were opened: then there are others. */
static int add_all(struct list_checkpoints *p, const char *data_dir, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < SCANS_MAX && !status && !p->n_added && (!i || p->n_absent); i++) {
        p->n_absent = 0;
        status = add_listed(p, data_dir, err);
    }
    return status;
}

static int run_one(const struct options *o, const char *path)
{
    struct list_checkpoints p = { .json = o->json, .root = cJSON_CreateArray() };
    struct terminal terminal;
    struct err err = { 0 };
    int status;

    text_grid_init(&p.grid, heads, COUNT_OF(heads));
    status = add_all(&p, path, &err);
    if (status) {
        cJSON_Delete(p.root);
        text_grid_drop(&p.grid);
        err.status = status;
        return data_dir_fail(&err);
    }
    if (p.json) {
        cJSON *answer = cJSON_CreateObject();

        cJSON_AddItemToObject(answer, "checkpoints", p.root);
        data_dir_print_json(answer);
        return EXIT_ANSWERED;
    }
    cJSON_Delete(p.root);
    terminal = terminal_of(stdout, o->output == OPTIONS_WIDE);
    text_grid_finish(&p.grid, &terminal, stdout);
    return EXIT_ANSWERED;
}

int list_checkpoints_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    (void)n_words;
    return data_dir_each(o, words[0], run_one);
}
