/*
 * psctl restore PATH[,PATH...] --to DATA_DIR: writes the rows of a cluster's nodes as the data directory of one node
 * of another cluster. The directory has one full checkpoint, with which an epoch of its log begins
 * (server/recovery/timeline.h). psd --restore does the same at a start; this works offline, and can restore named
 * tables only.
 */
#ifndef DEPLOY_PSCTL_RESTORE_H
#define DEPLOY_PSCTL_RESTORE_H

#include "deploy/psctl/options.h"

int restore_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
