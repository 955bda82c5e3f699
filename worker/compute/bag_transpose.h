/*
 * The transpose of a batch's bags, made on the host: for each row the bags that hold it (a CSC matrix of the bags),
 * for devices that sum a row's gradient by row (device_ops.wants_transpose).
 *
 *     bags     [n_keys]        0 3 7 | 1 | 2 4 ...   the bags that hold row 0, row 1 ...; of each row ascending, a
 *                                                    bag as often as it holds the row
 *     spans    [n_spans + 1]   0       3   4         the begin of each span in `bags`: BAG_TRANSPOSE_SPAN bags of
 *                                                    one row; a row's last span has the rest
 *     first    [n_rows + 1]    0       1   2         the first span of each row
 */
#ifndef WORKER_COMPUTE_BAG_TRANSPOSE_H
#define WORKER_COMPUTE_BAG_TRANSPOSE_H

#include "common/base.h"

#define BAG_TRANSPOSE_SPAN 64u

/* The input of ops. The counts are in the device's memory, because the arguments of recorded ops (device_ops.begin) do
 * not change. */
struct bag_transpose {
    uint32_t n_rows_max, n_spans_max; /* the arrays' capacity */
    const uint32_t *counts;           /* 2: n_rows, n_spans */
    const uint32_t *bags, *spans, *first;
};

/* A batch as batch_dedup() leaves it. */
struct bag_transpose_input {
    uint32_t n_bags, n_rows;
    const uint32_t *starts;       /* n_bags + 1; the last is n_keys */
    const uint32_t *row_of;       /* n_keys */
    const uint32_t *order;        /* n_keys: positions by row, of each row ascending */
    const uint32_t *order_starts; /* n_rows + 1: where those of a row begin in `order` */
};

/* The output, the caller's memory. */
struct bag_transpose_arrays {
    uint32_t *counts; /* 2 */
    uint32_t *first;  /* n_rows + 1 */
    uint32_t *spans;  /* bag_transpose_n_spans_max() + 1 */
    uint32_t *bags;   /* n_keys */
};

/* The largest number of spans of n_rows rows in n_keys positions. */
uint32_t bag_transpose_n_spans_max(uint32_t n_rows, uint32_t n_keys);

void bag_transpose_build(const struct bag_transpose_input *from,
                         const struct bag_transpose_arrays *to);

#endif
