/*
 * psctl checkpoint: asks every node of the cluster for one, all at once, and waits as long as each says that it is at
 * work: o->timeout_ms is how long a node may say nothing.
 */
#ifndef DEPLOY_PSCTL_ASK_CHECKPOINT_H
#define DEPLOY_PSCTL_ASK_CHECKPOINT_H

#include "deploy/psctl/options.h"

/* EXIT_FAILED where one of the nodes has failed; all are told. */
int ask_checkpoint_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
