/*
 * A log-linear histogram of u64 values: 16 linear steps for each power of two, so any value is
 * known within 1/16 of itself. One thread writes, any thread reads (relaxed atomics); no
 * allocation.
 */
#ifndef COMMON_HISTOGRAM_H
#define COMMON_HISTOGRAM_H

#include <stdatomic.h>

#include "common/base.h"

#define HISTOGRAM_N_BUCKETS (61 * 16)

struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_N_BUCKETS];
    _Atomic uint64_t n, sum, max;
};

void histogram_record(struct histogram *h, uint64_t value);

/* The upper end of the bucket that holds the q-quantile, q in [0, 1]; at most max; 0 when
 * empty. */
uint64_t histogram_quantile(const struct histogram *h, double q);

/* Adds what `from` holds to `into`, of which the caller is the writer. */
void histogram_merge(struct histogram *into, const struct histogram *from);

/* Sets *into, which is zeroed, to `now` less `before`, an earlier copy of it. The max is known to within a bucket. */
void histogram_difference(struct histogram *into, const struct histogram *now,
                          const struct histogram *before);

/* How many values are in this bucket, of HISTOGRAM_N_BUCKETS, and the greatest that may be. */
uint64_t histogram_bucket(const struct histogram *h, unsigned bucket, uint64_t *ret_last);

/* Values <= limit, to within a bucket. For Prometheus' cumulative buckets. */
uint64_t histogram_count_le(const struct histogram *h, uint64_t limit);

#endif
