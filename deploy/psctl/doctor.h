/* psctl doctor: what is wrong, or will be, in sentences. */
#ifndef DEPLOY_PSCTL_DOCTOR_H
#define DEPLOY_PSCTL_DOCTOR_H

#include <cjson/cJSON.h>

#include "deploy/psctl/options.h"

/* Of two reports of the cluster ({"nodes":[...]}, cluster_rates.h): [{"severity":"problem"|"warning"|"note", "node":N,
 * "text":"..."}, ...], problems first; without "node" it is of the cluster or a job. The caller's to delete. */
cJSON *doctor_examine(const cJSON *before, const cJSON *after);

/* EXIT_FAILED if there is a problem. */
int doctor_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
