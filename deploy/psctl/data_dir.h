/* Shared functions of the commands that read data directories. They never write to the directories. */
#ifndef DEPLOY_PSCTL_DATA_DIR_H
#define DEPLOY_PSCTL_DATA_DIR_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "deploy/psctl/options.h"
#include "server/recovery/load_cluster.h"

/*
 * Retries a scan of data directories that psd may write to. If psd has committed and removed checkpoints (--keep)
 * during the scan, a failure to read says nothing about damage, and the reader starts again.
 *
 *     do {
 *         retry_scan_begin(&scan);
 *         status = ... reads ...
 *     } while (retry_scan_is_due(&scan, status));
 *     return retry_scan_end(&scan, status, err);
 */
#define RETRY_SCAN_N_MAX 16u

struct retry_scan {
    const struct load_cluster_config *config; /* borrowed */
    uint64_t stand; /* which checkpoints were there at the last scan */
    uint32_t n_scans;
    bool
        is_point[LOAD_CLUSTER_N_PATHS_MAX]; /* paths that were a checkpoint at the first scan */
};

void retry_scan_begin(struct retry_scan *w);

/* True if the status may come from a checkpoint that was removed meanwhile; reports it to the config's report. At most
 * RETRY_SCAN_N_MAX scans in all. */
bool retry_scan_is_due(const struct retry_scan *w, int status);

/* The status, with another sentence where a checkpoint was named that is not there any more. */
int retry_scan_end(const struct retry_scan *w, int status, struct err *err);

/* The sentence of a checkpoint that went while it was read: PS_ENOCHECKPOINT. */
int retry_scan_gone(const char *dir, struct err *err);

/* load_cluster_one(), begun again as long as it has to be. */
int retry_scan_load(const struct load_cluster_config *config, uint64_t now_ms,
                    struct shard **ret, struct load_cluster_facts *ret_facts, struct err *err)
    ON_SHARD MUST_CHECK;

/* PATH[,PATH...] */
struct data_dir_paths {
    char text[SETTINGS_TEXT_MAX];
    const char *items[LOAD_CLUSTER_N_PATHS_MAX]; /* into text */
    uint32_t n;
};

int data_dir_read_paths(const char *word, struct data_dir_paths *ret, struct err *err)
    MUST_CHECK;

/* Calls `one` for each of PATH[,PATH...], with the path printed above its output if there are several. Returns the
 * greatest exit code. */
int data_dir_each(const struct options *o, const char *word,
                  int (*one)(const struct options *o, const char *path));

/* PS_ESETTING as recover_shard_at_read(). ret->tables and `job` are borrowed by it. */
int data_dir_config(const struct options *o, const struct data_dir_paths *paths,
                    enum load_cluster_extent extent, char job[static TABLE_SPEC_NAME_MAX],
                    struct load_cluster_config *ret, struct err *err) MUST_CHECK;

/* The state that `word`, o->at and o->tables name, as one shard. */
int data_dir_collect(const struct options *o, const char *word, enum load_cluster_extent extent,
                     struct shard **ret, struct load_cluster_facts *ret_facts, struct err *err)
    ON_SHARD MUST_CHECK;

/* A sentence on stderr that is no failure: load_cluster_config.report. */
void data_dir_note(void *arg, const char *sentence);

/* The sentence on stderr, and the exit code for it: EXIT_MISUSED for PS_ESETTING, else EXIT_FAILED. */
int data_dir_fail(const struct err *err);

/* Prints the object as a line and frees it. */
void data_dir_print_json(cJSON *object);

/* All 64 bits: JSON's numbers have 53. */
void data_dir_add_u64(cJSON *object, const char *name, uint64_t value);

/* As people type it: decimal, or hexadecimal behind 0x. PS_ESETTING and a sentence. */
int data_dir_read_key(const char *text, uint64_t *ret, struct err *err) MUST_CHECK;

#endif
