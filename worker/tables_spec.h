/*
 * Settings -> what each table of a run is: its rows, how they start, its optimizer, its mode.
 */
#ifndef WORKER_TABLES_SPEC_H
#define WORKER_TABLES_SPEC_H

#include "worker/model/dlrm_tensor.h"
#include "worker/settings.h"

/* JOB/name: what the sparse tables share. */
struct table_spec tables_spec_sparse(const struct settings *s, const char *name, uint32_t dim);

/* JOB/name: a dense array that is assigned, or summed up with SGD at rate 1. */
struct table_spec tables_spec_dense(const struct settings *s, const char *name,
                                    uint64_t n_floats);

/* The model's tensor number i: with the dense optimizer, unless it is a statistic. */
struct table_spec tables_spec_tensor(const struct settings *s, const struct dlrm_tensor *tensor,
                                     uint32_t i);

#endif
