/*
 * A sample of rows of bounded size, each row of a pass with the same chance to be in it: algorithm R of Vitter 1985
 * ("Random sampling with a reservoir"), by a seed.
 */
#ifndef WORKER_REPORT_ROW_SAMPLE_H
#define WORKER_REPORT_ROW_SAMPLE_H

#include <stdbool.h>

#include "worker/data/batch.h"

/* A row's numbers are behind it, in one piece of memory: keys, labels, numerics, keys of each field. */
struct row_sample_row;

struct row_sample {
    uint32_t n_max, n;
    uint32_t n_labels, n_numeric, n_fields;
    uint64_t n_seen, seed;
    struct row_sample_row **rows; /* owned; [n_max] */
};

/* n_max > 0. -ENOMEM. */
int row_sample_init(struct row_sample *s, uint32_t n_max, uint64_t seed) MUST_CHECK;
void row_sample_deinit(struct row_sample *s);

/* Draws among a batch's rows; all batches have one shape. -ENOMEM leaves a sample of fewer rows. */
int row_sample_add(struct row_sample *s, const struct batch *batch) MUST_CHECK;

/* A column that takes its values from other rows. */
struct row_sample_swap {
    bool is_numeric;
    uint32_t column;
    const uint32_t *from; /* [n]: row i has the value of row from[i] */
};

/* Fills the batch with rows first .. first + n - 1; swap: NULL for none. It is not deduplicated yet. -ENOMEM. */
int row_sample_fill(const struct row_sample *s, uint32_t first, uint32_t n,
                    const struct row_sample_swap *swap, struct batch *batch) MUST_CHECK;

#endif
