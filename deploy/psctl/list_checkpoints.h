/* psctl checkpoints PATH: the restore points of a data directory, and what they hold. */
#ifndef DEPLOY_PSCTL_LIST_CHECKPOINTS_H
#define DEPLOY_PSCTL_LIST_CHECKPOINTS_H

#include "deploy/psctl/options.h"

/* words[0]: PATH */
int list_checkpoints_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
