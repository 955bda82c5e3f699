/*
 * Quality of predicted probabilities: exact AUC (ties count one half), log-loss, normalised entropy, calibration, over
 * any number of samples added in any order. Golden values: golden/metrics.
 */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include "common/base.h"

struct metrics {
    float *probs;  /* owned */
    float *labels; /* owned */
    uint64_t n, cap;
};

#define METRICS_TASKS_MAX 8u

/* Of one label of several. */
struct metrics_task {
    char label[64];
    double auc, logloss, ne, calibration;
};

/* Of several labels means over them, but for the counts, which are the first one's. */
struct metrics_result {
    uint64_t n, n_positive;
    double auc;     /* NaN when only one class is there */
    double logloss; /* natural log, p clipped to [1e-7, 1 - 1e-7], mean */
    /* Log-loss / entropy of the set's own base rate: He et al. 2014, eq. 1; NaN when one
     * class. */
    double ne;
    double calibration; /* mean p / mean y */
    uint32_t n_tasks;   /* 0: there is one label */
    struct metrics_task tasks[METRICS_TASKS_MAX];
};

/* -ENOMEM leaves *m as it was. */
int metrics_add(struct metrics *m, const float *probs, const float *labels, uint32_t n)
    MUST_CHECK;
int metrics_result(const struct metrics *m, struct metrics_result *ret) MUST_CHECK;

/* Of sample i the numbers at [i * ld] */
int metrics_add_column(struct metrics *m, const float *probs, const float *labels, uint32_t n,
                       uint32_t ld) MUST_CHECK;

/* The result of n labels, each of which has a name. */
int metrics_result_of_tasks(const struct metrics *m, const char (*labels)[64], uint32_t n,
                            struct metrics_result *ret) MUST_CHECK;
void metrics_deinit(struct metrics *m);

#endif
