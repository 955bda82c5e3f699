/*
 * How a run went: its loss and its validations over samples, in bounded memory. A point of the loss is the mean of
 * `stride` steps; when there are as many points as fit, each two become one, and the stride doubles. Of validations
 * that are too many every second one is dropped, but never the last.
 */
#ifndef WORKER_REPORT_TRAINING_HISTORY_H
#define WORKER_REPORT_TRAINING_HISTORY_H

#include "worker/metrics.h"

#define TRAINING_HISTORY_POINTS 240u /* even */

/* Zeroed: empty. */
struct training_history {
    uint32_t n; /* points */
    uint64_t stride;
    double samples_start; /* of earlier processes: at seconds 0 */
    double samples[TRAINING_HISTORY_POINTS], seconds[TRAINING_HISTORY_POINTS];
    double loss[TRAINING_HISTORY_POINTS];
    double loss_sum;  /* of steps that are no point yet, */
    uint64_t n_steps; /* and their number */
    uint32_t n_validations;
    double valid_samples[TRAINING_HISTORY_POINTS];
    double auc[TRAINING_HISTORY_POINTS], logloss[TRAINING_HISTORY_POINTS];
    uint32_t epoch[TRAINING_HISTORY_POINTS]; /* from 0 */
};

/* A step with this mean loss has ended. */
void training_history_loss(struct training_history *h, double loss);
/* So many samples and seconds of training until now: enough steps make a point. */
void training_history_step(struct training_history *h, double samples, double seconds);
/* The steps since the last point are one, too. */
void training_history_end(struct training_history *h, double samples, double seconds);
void training_history_validation(struct training_history *h, uint32_t epoch, double samples,
                                 const struct metrics_result *result);

/* Samples/s up to each point since the one before it. */
void training_history_rates(const struct training_history *h,
                            double ret[static TRAINING_HISTORY_POINTS]);

#endif
