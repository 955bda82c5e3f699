/*
 * Are probabilities what they say? Samples in the order of their predictions, in tenths: of each the mean prediction,
 * and the share that were positive. Equal predictions are in one bin, so there may be fewer than ten.
 */
#ifndef WORKER_REPORT_CALIBRATION_H
#define WORKER_REPORT_CALIBRATION_H

#include "worker/metrics.h"

#define CALIBRATION_BINS 10u

struct calibration_bin {
    uint64_t n, n_positive;
    double low, high;                             /* predictions */
    double predicted;                             /* their mean */
    double observed, observed_low, observed_high; /* with Wilson's interval of 95 % */
};

struct calibration {
    uint32_t n;
    struct calibration_bin bins[CALIBRATION_BINS];
};

/* -ENOMEM. Without samples, or with a prediction that is no number, there is no bin. */
int calibration_of(const struct metrics *m, struct calibration *ret) MUST_CHECK;

#endif
