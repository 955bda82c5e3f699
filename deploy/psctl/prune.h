/*
 * psctl prune PATH[,PATH...]: lists files of a data directory that no start needs, with their size; --yes removes them.
 *
 *     psd runs       checkpoints and logs that a start has archived (--at, --restore, --no-restore)
 *     psd is stopped also all restore points but the newest --keep, and the write-ahead log before the oldest of these
 *
 * The newest restore point is read as a whole before anything else of psd's own is removed; if it is damaged, nothing
 * is removed.
 */
#ifndef DEPLOY_PSCTL_PRUNE_H
#define DEPLOY_PSCTL_PRUNE_H

#include "deploy/psctl/options.h"

/* words[0]: PATH. EXIT_FAILED where the newest restore point is damaged, or the directory is none. */
int prune_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
