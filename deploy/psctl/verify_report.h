/* What is found while a data directory is verified, and told as it is found. */
#ifndef DEPLOY_PSCTL_VERIFY_REPORT_H
#define DEPLOY_PSCTL_VERIFY_REPORT_H

#include <cjson/cJSON.h>

#include "deploy/psctl/verify_log.h"
#include "server/store/manifest.h"
#include "server/store/shelf.h"

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

struct verify_report {
    const struct file_ops *files; /* borrowed */
    const char *data_dir;         /* borrowed */
    enum verify_telling telling;
    cJSON *root;                                  /* owned */
    cJSON *points_json, *logs_json, *damage_json; /* borrowed: in root */
    struct verify_point *points;                  /* owned; ascending */
    size_t n_points;
    struct verify_log *logs; /* owned; by epoch and shard */
    size_t n_logs;
    uint32_t n_damaged;
};

/* A line, unless quietly. */
void verify_report_say(const struct verify_report *v, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A line, and an item of the JSON's list. */
void verify_report_damage(struct verify_report *v, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* NULL: it was not listed. */
const struct verify_point *verify_report_find(const struct verify_report *v, uint64_t number);

/* Of a checkpoint that was listed. */
void verify_report_dir(const struct verify_report *v, uint64_t number,
                       char ret[static SHELF_PATH_MAX]);

#endif
