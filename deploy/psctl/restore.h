/*
 * psctl restore PATH[,PATH...] --to DATA_DIR: the rows that the nodes of a cluster hold, as the data directory of one
 * node of another: one full checkpoint, with which an epoch of its log begins (server/recovery/timeline.h). As psd --restore
 * does at a start, but offline, and of some tables only where these are named.
 */
#ifndef DEPLOY_PSCTL_RESTORE_H
#define DEPLOY_PSCTL_RESTORE_H

#include "deploy/psctl/options.h"

int restore_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
