/* psctl top: shards and jobs with their rates, again and again. */
#ifndef DEPLOY_PSCTL_TOP_H
#define DEPLOY_PSCTL_TOP_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "deploy/psctl/options.h"
#include "deploy/psctl/terminal.h"

enum top_sort { TOP_BY_NUMBER, TOP_BY_ROWS, TOP_BY_LATENCY, TOP_BY_MEMORY, TOP_BY_LAG };

/* What is shown, and how. */
struct top_view {
    struct terminal terminal;
    enum top_sort sort;
    bool has_keys;     /* the last line names the keys, and a job is selected */
    uint32_t selected; /* job, as they are listed */
    bool is_open;      /* the workers and tables of that job in place of the shards */
};

/* A key that was pressed, of n_jobs jobs. False: it ends top. */
bool top_press(struct top_view *view, uint32_t n_jobs, const char *key);

/* Prints the rates between two reports of the cluster (cluster_rates.h). Returns how many jobs are listed. */
uint32_t top_print(const cJSON *before, const cJSON *after, const struct top_view *view,
                   FILE *out);

/* The same as {"nodes": [...], "shards": [...], "jobs": [...]}: rates are null where there is no earlier report. The
 * caller's to delete. */
cJSON *top_json(const cJSON *before, const cJSON *after);

int top_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
