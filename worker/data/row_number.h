/*
 * A number's token -> the float that a batch holds: parsed, transformed as the plan says, or
 * refused.
 */
#ifndef WORKER_DATA_ROW_NUMBER_H
#define WORKER_DATA_ROW_NUMBER_H

#include "worker/data/row_plan.h"

enum row_number { ROW_NUMBER_FINE, ROW_NUMBER_NOT_ONE, ROW_NUMBER_TOO_LARGE };

/* Whether a token stands for a value that is not there. */
bool row_number_is_missing(const struct row_plan *plan, struct row_span token);

/* `i` counts the plan's numeric columns. *ret is written in any case. */
enum row_number row_number(const struct row_plan *plan, uint32_t i, struct row_span token,
                           float *ret);

#endif
