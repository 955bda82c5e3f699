/* psctl diff and replay: states of models, side by side. */
#ifndef DEPLOY_PSCTL_COMPARE_RUN_H
#define DEPLOY_PSCTL_COMPARE_RUN_H

#include "deploy/psctl/options.h"

/* words: A, B. Differences are what was asked for: no failure. */
int compare_run_diff(const struct options *o, const char *const *words, uint32_t n_words);

/* words[0]: PATH. EXIT_FAILED where it differs from o->against. */
int compare_run_replay(const struct options *o, const char *const *words, uint32_t n_words);

#endif
