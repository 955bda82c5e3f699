/* What the commands that read data directories have in common. They never write to what they read. */
#ifndef DEPLOY_PSCTL_OFFLINE_H
#define DEPLOY_PSCTL_OFFLINE_H

#include <cjson/cJSON.h>

#include "deploy/psctl/options.h"
#include "server/durable/collect.h"

/* PATH[,PATH...] */
struct offline_paths {
    char text[SETTINGS_TEXT_MAX];
    const char *items[COLLECT_N_PATHS_MAX]; /* into text */
    uint32_t n;
};

int offline_read_paths(const char *word, struct offline_paths *ret, struct err *err) MUST_CHECK;

/* What `one` does, for each of PATH[,PATH...], its path above it where there are several: the greatest exit code. */
int offline_each(const struct options *o, const char *word,
                 int (*one)(const struct options *o, const char *path));

/* PS_ESETTING as rebuild_at_read(). ret->tables and `job` are borrowed by it. */
int offline_config(const struct options *o, const struct offline_paths *paths,
                   enum collect_extent extent, char job[static SPEC_NAME_MAX],
                   struct collect_config *ret, struct err *err) MUST_CHECK;

/* The state that `word`, o->at and o->tables name, as one shard. */
int offline_collect(const struct options *o, const char *word, enum collect_extent extent,
                    struct shard **ret, struct collect_facts *ret_facts, struct err *err)
    ON_SHARD MUST_CHECK;

/* A sentence on stderr that is no failure: collect_config.report. */
void offline_note(void *arg, const char *sentence);

/* The sentence on stderr, and the exit code for it: EXIT_MISUSED for PS_ESETTING, else EXIT_FAILED. */
int offline_fail(const struct err *err);

/* Prints the object as a line and frees it. */
void offline_print_json(cJSON *object);

/* All 64 bits: JSON's numbers have 53. */
void offline_add_u64(cJSON *object, const char *name, uint64_t value);

/* As people type it: decimal, or hexadecimal behind 0x. PS_ESETTING and a sentence. */
int offline_read_key(const char *text, uint64_t *ret, struct err *err) MUST_CHECK;

#endif
