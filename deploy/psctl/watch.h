/*
 * Data directories that psd may write to while they are read: where it has finished and removed checkpoints (--keep)
 * meanwhile, what could not be read says nothing, and whoever reads begins again.
 *
 *     do {
 *         watch_begin(&watch);
 *         status = ... reads ...
 *     } while (watch_again(&watch, status));
 *     return watch_end(&watch, status, err);
 */
#ifndef DEPLOY_PSCTL_WATCH_H
#define DEPLOY_PSCTL_WATCH_H

#include <stdbool.h>

#include "server/durable/collect.h"

#define WATCH_N_LOOKS_MAX 16u

struct watch {
    const struct collect_config *config; /* borrowed */
    uint64_t stand;                      /* which checkpoints were there at the last look */
    uint32_t n_looks;
    bool is_point[COLLECT_N_PATHS_MAX]; /* paths that were a checkpoint at the first look */
};

void watch_begin(struct watch *w);

/* Has that status come of a checkpoint that went meanwhile? Says so to the config's report. At most WATCH_N_LOOKS_MAX
 * looks in all. */
bool watch_again(const struct watch *w, int status);

/* The status, with another sentence where a checkpoint was named that is not there any more. */
int watch_end(const struct watch *w, int status, struct err *err);

/* The sentence of a checkpoint that went while it was read: PS_ENOCHECKPOINT. */
int watch_gone(const char *dir, struct err *err);

/* collect_one(), begun again as long as it has to be. */
int watch_collect(const struct collect_config *config, uint64_t now_ms, struct shard **ret,
                  struct collect_facts *ret_facts, struct err *err) ON_SHARD MUST_CHECK;

#endif
