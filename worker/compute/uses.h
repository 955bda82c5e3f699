/*
 * Who uses each row, made on the host: the arrays of struct bag_uses (compute.h) out of a batch's.
 *
 *     bags     0 3 7 | 1 | 2 4 ...     of row 0, row 1, row 2 ...
 *     spans    0       3   4   6       where those of a row begin; long rows are cut every COMPUTE_SPAN uses
 *     first    0       1   2   3       a row's first span
 */
#ifndef WORKER_COMPUTE_USES_H
#define WORKER_COMPUTE_USES_H

#include "worker/compute/compute.h"

/* As batch_dedup() leaves them. */
struct uses_source {
    uint32_t n_bags, n_rows;
    const uint32_t *starts;       /* n_bags + 1; the last is n_keys */
    const uint32_t *row_of;       /* n_keys */
    const uint32_t *order;        /* n_keys: positions by row, of each row ascending */
    const uint32_t *order_starts; /* n_rows + 1: where those of a row begin in `order` */
};

/* Room, the caller's. */
struct uses {
    uint32_t *counts; /* 2 */
    uint32_t *first;  /* n_rows + 1 */
    uint32_t *spans;  /* uses_n_spans_max() + 1 */
    uint32_t *bags;   /* n_keys */
};

/* Spans of n_rows rows with n_keys uses between them, at most. */
uint32_t uses_n_spans_max(uint32_t n_rows, uint32_t n_keys);

void uses_build(const struct uses_source *from, const struct uses *to);

#endif
