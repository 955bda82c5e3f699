/* psctl job NAME: one job whole, or its curve. */
#ifndef DEPLOY_PSCTL_JOB_H
#define DEPLOY_PSCTL_JOB_H

#include "deploy/psctl/options.h"

/* Returns the exit code. */
int job_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
