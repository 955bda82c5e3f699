#include "deploy/psctl/data_dir.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/number.h"
#include "server/checkpoint/directory.h"

/* Of one path: a checkpoint, or a data directory with some. */
static uint64_t stand_of(const struct file_ops *files, const char *path)
{
    char dir[DIRECTORY_PATH_MAX];
    struct directory_numbers numbers = { 0 };
    uint64_t stand = directory_is_finished(files, path);

    if (directory_path(path, dir, NULL) || directory_list(files, dir, &numbers, NULL))
        numbers.n = 0;
    for (size_t i = 0; i < numbers.n; i++)
        if (directory_number_path(path, numbers.items[i], dir, NULL) == 0 &&
            directory_is_finished(files, dir))
            stand = hash_mix2(stand, numbers.items[i]);
    free(numbers.items);
    return stand;
}

static uint64_t stand_now(const struct load_cluster_config *config)
{
    uint64_t stand = 0;

    for (uint32_t i = 0; i < config->n_paths; i++)
        stand = hash_mix2(stand, stand_of(config->files, config->paths[i]));
    return stand;
}

void retry_scan_begin(struct retry_scan *w)
{
    const struct load_cluster_config *c = w->config;

    for (uint32_t i = 0; i < c->n_paths && !w->n_scans; i++)
        w->is_point[i] = directory_is_finished(c->files, c->paths[i]);
    w->stand = stand_now(w->config);
    w->n_scans++;
}

bool retry_scan_is_due(const struct retry_scan *w, int status)
{
    const struct load_cluster_config *c = w->config;
    bool is_last = w->n_scans == RETRY_SCAN_N_MAX;

    if (!checkpoint_is_damage(status) && status != PS_ENOCHECKPOINT)
        return false;
    if (stand_now(c) == w->stand)
        return false;
    if (c->report)
        c->report(c->arg, is_last
                              ? "psd has replaced checkpoints each time that they were read: a "
                                "copy, or psd with a greater --keep, stands still"
                              : "psd has replaced checkpoints while they were read: again");
    return !is_last;
}

int retry_scan_gone(const char *dir, struct err *err)
{
    return err_set(err, PS_ENOCHECKPOINT,
                   "%.160s was removed while it was read: psd keeps the newest ones (--keep)",
                   dir);
}

int retry_scan_end(const struct retry_scan *w, int status, struct err *err)
{
    const struct load_cluster_config *c = w->config;

    for (uint32_t i = 0; i < c->n_paths && status; i++)
        if (w->is_point[i] && !directory_is_finished(c->files, c->paths[i]))
            return retry_scan_gone(c->paths[i], err);
    return status;
}

int retry_scan_load(const struct load_cluster_config *config, uint64_t now_ms,
                    struct shard **ret, struct load_cluster_facts *ret_facts, struct err *err)
{
    struct retry_scan scan = { .config = config };
    int status;

    do {
        retry_scan_begin(&scan);
        status = load_cluster_one(config, now_ms, ret, ret_facts, err);
    } while (retry_scan_is_due(&scan, status));
    return retry_scan_end(&scan, status, err);
}

int data_dir_read_paths(const char *word, struct data_dir_paths *ret, struct err *err)
{
    char *at, *next;

    ret->n = 0;
    if (strlen(word) >= sizeof ret->text)
        return err_set(err, PS_ESETTING, "paths of more than %zu characters", sizeof ret->text);
    snprintf(ret->text, sizeof ret->text, "%s", word);
    for (at = ret->text; at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (!at[0])
            return err_set(err, PS_ESETTING, "\"%.100s\" has an empty path between commas",
                           word);
        if (ret->n == LOAD_CLUSTER_N_PATHS_MAX)
            return err_set(err, PS_ESETTING, "more than %u paths", LOAD_CLUSTER_N_PATHS_MAX);
        ret->items[ret->n++] = at;
    }
    return 0;
}

int data_dir_each(const struct options *o, const char *word,
                  int (*one)(const struct options *o, const char *path))
{
    struct data_dir_paths paths;
    struct err err = { 0 };
    int code = EXIT_ANSWERED;

    err.status = data_dir_read_paths(word, &paths, &err);
    if (err.status)
        return data_dir_fail(&err);
    for (uint32_t i = 0; i < paths.n; i++) {
        int one_code;

        if (paths.n > 1 && !o->json)
            printf("%s%s:\n", i ? "\n" : "", paths.items[i]);
        one_code = one(o, paths.items[i]);
        code = one_code > code ? one_code : code;
    }
    return code;
}

int data_dir_config(const struct options *o, const struct data_dir_paths *paths,
                    enum load_cluster_extent extent, char job[static TABLE_SPEC_NAME_MAX],
                    struct load_cluster_config *ret, struct err *err)
{
    *ret = (struct load_cluster_config){ .files = &file_os,
                                         .paths = paths->items,
                                         .n_paths = paths->n,
                                         .extent = extent,
                                         .tables = (const char *const *)o->tables.items,
                                         .n_tables = o->tables.n,
                                         .report = data_dir_note };
    return recover_shard_at_read(o->at, job, &ret->at, err);
}

int data_dir_collect(const struct options *o, const char *word, enum load_cluster_extent extent,
                     struct shard **ret, struct load_cluster_facts *ret_facts, struct err *err)
{
    struct load_cluster_config config;
    struct data_dir_paths paths;
    char job[TABLE_SPEC_NAME_MAX];
    int status = data_dir_read_paths(word, &paths, err);

    if (!status)
        status = data_dir_config(o, &paths, extent, job, &config, err);
    return status ? status : retry_scan_load(&config, clock_mono_ms(), ret, ret_facts, err);
}

void data_dir_note(void *arg, const char *sentence)
{
    (void)arg;
    fprintf(stderr, "psctl: note: %s\n", sentence);
}

int data_dir_fail(const struct err *err)
{
    fprintf(stderr, "psctl: %s\n", err->text);
    return err->status == PS_ESETTING ? EXIT_MISUSED : EXIT_FAILED;
}

void data_dir_print_json(cJSON *object)
{
    char *text = cJSON_PrintUnformatted(object);

    puts(text ? text : "{}");
    free(text);
    cJSON_Delete(object);
}

void data_dir_add_u64(cJSON *object, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    cJSON_AddRawToObject(object, name, text);
}

int data_dir_read_key(const char *text, uint64_t *ret, struct err *err)
{
    char *end;

    if (number_read_u64(text, ret) == 0)
        return 0;
    if (strncmp(text, "0x", 2) == 0 && text[2] && strlen(text) <= 18 &&
        strspn(text + 2, "0123456789abcdefABCDEF") == strlen(text + 2)) {
        *ret = strtoull(text, &end, 16);
        return 0;
    }
    return err_set(err, PS_ESETTING,
                   "key: found \"%.60s\", expected a number below 2^64, decimal or behind 0x",
                   text);
}
