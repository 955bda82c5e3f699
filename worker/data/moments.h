/*
 * Mean and standard deviation of the numeric columns, over the first rows of the files: SCHEMA_STANDARDISE subtracts
 * the one and divides by the other. Missing values and malformed rows are left out; one pass, Welford's update in
 * double, in file order.
 */
#ifndef WORKER_DATA_MOMENTS_H
#define WORKER_DATA_MOMENTS_H

#include "common/status.h"
#include "worker/data/input_pipe.h"
#include "worker/data/schema.h"

/* [schema_n_numeric] each; the files have the label column, if the schema has one. A column
 * without a value: mean 0, std 1. Pipes (may be NULL) are prescanned. */
int moments_measure(const struct schema *schema, struct input_pipes *pipes, char *const *files,
                    uint32_t n_files, uint64_t n_rows_max, float *ret_mean, float *ret_std,
                    struct err *err) MUST_CHECK;

#endif
