/* psctl latency: how long requests took in the last minute, by type, and what the slowest of them waited for. */
#ifndef DEPLOY_PSCTL_LATENCY_H
#define DEPLOY_PSCTL_LATENCY_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "deploy/psctl/options.h"
#include "deploy/psctl/terminal.h"

/* Of two reports of the cluster (cluster_rates.h): the times of the later one, and what was waited for between the
 * two. */
void latency_print(const cJSON *before, const cJSON *after, const struct terminal *terminal,
                   FILE *out);

/* The same as an object; the caller's to delete. */
cJSON *latency_report(const cJSON *before, const cJSON *after);

int latency_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
