/*
 * Successive halving (Jamieson and Talwalkar 2016, AISTATS): all trials train on few rows, the best 1/eta of them anew
 * on eta times as many, and so on, until those that are left train on all.
 */
#ifndef WORKER_TUNE_HALVING_H
#define WORKER_TUNE_HALVING_H

#include "common/base.h"

#define HALVING_RUNGS_MAX 4u /* with less than eta^-3 of the rows nothing is known of a trial */

struct halving {
    uint32_t n_rungs;
    uint32_t n_trials[HALVING_RUNGS_MAX];
    double share[HALVING_RUNGS_MAX]; /* of the rows; the last is 1 */
};

/* eta 1, or too few trials: one rung. Else the last rung has two trials or more, so that their order is one of whole
 * runs. */
void halving_plan(uint32_t n_trials, uint32_t eta, struct halving *ret);

/* The steps of a trial on this share of a whole one, which ends after all epochs or after --steps-max; 0: no end of its
 * own. n_rows: of an epoch. */
uint64_t halving_steps(double share, uint64_t n_rows, uint32_t n_epochs, uint32_t batch,
                       uint64_t steps_max);

/* The `keep` trials with the least loss, by their numbers, best first; of equal ones the lower number. Losses that are
 * no number are of trials that failed, and are left out. Returns how many there are. */
uint32_t halving_promote(const double *losses, uint32_t n, uint32_t keep,
                         uint32_t *ret_numbers);

#endif
