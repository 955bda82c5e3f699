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

#endif
