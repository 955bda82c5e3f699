/*
 * The trained model read only: probabilities of rows, and how good they are.
 */
#ifndef WORKER_EVALUATE_H
#define WORKER_EVALUATE_H

#include <stdio.h>

#include "worker/metrics.h"
#include "worker/model_tables.h"
#include "worker/setup.h"

/* One pass over the validation rows with the model as it is at `clock`. predictions: a
 * probability a line is written there; NULL: none. *bad is added to. A pull that is
 * fenced makes it return PS_EFENCED. */
int evaluate(const struct setup *u, struct model_tables *tables, uint64_t clock,
             FILE *predictions, struct metrics_result *ret, struct data_loader_bad_rows *bad,
             struct err *err) MUST_CHECK;

/* Sees the rows and the probabilities of a pass. It has no way to fail the pass. */
struct evaluate_observer {
    void *arg;
    void (*on_batch)(void *arg, const struct batch *batch);
    /* Once all are there; of each label. */
    void (*on_end)(void *arg, const struct metrics *metrics, uint32_t n_labels);
};

/* The same with an observer; NULL: none. */
int evaluate_observed(const struct setup *u, struct model_tables *tables, uint64_t clock,
                      FILE *predictions, const struct evaluate_observer *observer,
                      struct metrics_result *ret, struct data_loader_bad_rows *bad,
                      struct err *err) MUST_CHECK;

#endif
