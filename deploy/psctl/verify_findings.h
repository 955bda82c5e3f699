/* The findings of `psctl verify`, printed as they are found. */
#ifndef DEPLOY_PSCTL_VERIFY_FINDINGS_H
#define DEPLOY_PSCTL_VERIFY_FINDINGS_H

#include <cjson/cJSON.h>

#include "deploy/psctl/verify_wal.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/manifest.h"

enum verify_telling { VERIFY_LINES, VERIFY_QUIETLY };

/* Of a checkpoint's own files. UNFINISHED: it has no manifest; GONE: it has none any more. */
enum verify_verdict { VERIFY_WHOLE, VERIFY_DAMAGED, VERIFY_UNFINISHED, VERIFY_GONE };

struct verify_point {
    uint64_t number;
    bool is_aside;
    enum verify_verdict verdict;
    struct manifest *manifest; /* owned; NULL: it cannot be read */
    cJSON *json;               /* borrowed: in points_json */
};

struct verify_findings {
    const struct file_ops *files; /* borrowed */
    const char *data_dir;         /* borrowed */
    enum verify_telling telling;
    cJSON *root;                                  /* owned */
    cJSON *points_json, *logs_json, *damage_json; /* borrowed: in root */
    struct verify_point *points;                  /* owned; ascending */
    size_t n_points;
    struct verify_wal *logs; /* owned; by epoch and shard */
    size_t n_logs;
    uint32_t n_damaged;
};

/* A line, unless quietly. */
void verify_findings_say(const struct verify_findings *v, const char *fmt, ...)
    PRINTF_LIKE(2, 3);

/* A line, and an item of the JSON's list. */
void verify_findings_damage(struct verify_findings *v, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* NULL: it was not listed. */
const struct verify_point *verify_findings_find(const struct verify_findings *v,
                                                uint64_t number);

/* Of a checkpoint that was listed. */
void verify_findings_dir(const struct verify_findings *v, uint64_t number,
                         char ret[static DIRECTORY_PATH_MAX]);

#endif
