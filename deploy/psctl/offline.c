#include "deploy/psctl/offline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/now.h"
#include "common/number.h"
#include "deploy/psctl/watch.h"

int offline_read_paths(const char *word, struct offline_paths *ret, struct err *err)
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
        if (ret->n == COLLECT_N_PATHS_MAX)
            return err_set(err, PS_ESETTING, "more than %u paths", COLLECT_N_PATHS_MAX);
        ret->items[ret->n++] = at;
    }
    return 0;
}

int offline_each(const struct options *o, const char *word,
                 int (*one)(const struct options *o, const char *path))
{
    struct offline_paths paths;
    struct err err = { 0 };
    int code = EXIT_ANSWERED;

    err.status = offline_read_paths(word, &paths, &err);
    if (err.status)
        return offline_fail(&err);
    for (uint32_t i = 0; i < paths.n; i++) {
        int one_code;

        if (paths.n > 1 && !o->json)
            printf("%s%s:\n", i ? "\n" : "", paths.items[i]);
        one_code = one(o, paths.items[i]);
        code = one_code > code ? one_code : code;
    }
    return code;
}

int offline_config(const struct options *o, const struct offline_paths *paths,
                   enum collect_extent extent, char job[static SPEC_NAME_MAX],
                   struct collect_config *ret, struct err *err)
{
    *ret = (struct collect_config){ .files = &file_os,
                                    .paths = paths->items,
                                    .n_paths = paths->n,
                                    .extent = extent,
                                    .tables = (const char *const *)o->tables.items,
                                    .n_tables = o->tables.n,
                                    .report = offline_note };
    return rebuild_at_read(o->at, job, &ret->at, err);
}

int offline_collect(const struct options *o, const char *word, enum collect_extent extent,
                    struct shard **ret, struct collect_facts *ret_facts, struct err *err)
{
    struct collect_config config;
    struct offline_paths paths;
    char job[SPEC_NAME_MAX];
    int status = offline_read_paths(word, &paths, err);

    if (!status)
        status = offline_config(o, &paths, extent, job, &config, err);
    return status ? status : watch_collect(&config, now_mono_ms(), ret, ret_facts, err);
}

void offline_note(void *arg, const char *sentence)
{
    (void)arg;
    fprintf(stderr, "psctl: note: %s\n", sentence);
}

int offline_fail(const struct err *err)
{
    fprintf(stderr, "psctl: %s\n", err->text);
    return err->status == PS_ESETTING ? EXIT_MISUSED : EXIT_FAILED;
}

void offline_print_json(cJSON *object)
{
    char *text = cJSON_PrintUnformatted(object);

    puts(text ? text : "{}");
    free(text);
    cJSON_Delete(object);
}

void offline_add_u64(cJSON *object, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    cJSON_AddRawToObject(object, name, text);
}

int offline_read_key(const char *text, uint64_t *ret, struct err *err)
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
