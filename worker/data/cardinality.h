/*
 * The number of different keys of each group of fields, over the first rows of the files: HyperLogLog of 4096
 * registers, so within about 2 %, and near exact up to some thousand.
 */
#ifndef WORKER_DATA_CARDINALITY_H
#define WORKER_DATA_CARDINALITY_H

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/input_pipe.h"
#include "worker/data/schema.h"

/* ret: [groups->n]. Files and pipes as in moments.h. */
int cardinality_measure(const struct schema *schema, const struct batch_groups *groups,
                        struct input_pipes *pipes, char *const *files, uint32_t n_files,
                        uint64_t n_rows_max, uint64_t *ret, struct err *err) MUST_CHECK;

#endif
