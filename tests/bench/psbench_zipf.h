/*
 * Ranks 1 .. n with probability proportional to 1 / rank^a, without a table: W. Hoermann, G.
 * Derflinger, "Rejection-inversion to generate variates from monotone discrete
 * distributions", ACM TOMACS 6 (1996). a = 0 is uniform.
 */
#ifndef TESTS_BENCH_PSBENCH_ZIPF_H
#define TESTS_BENCH_PSBENCH_ZIPF_H

#include "common/base.h"

struct psbench_zipf {
    double a, h_first, h_last, squeeze;
    uint64_t n, seed, n_drawn;
};

void psbench_zipf_init(struct psbench_zipf *z, uint64_t n, double a, uint64_t seed);
uint64_t psbench_zipf_draw(struct psbench_zipf *z);

#endif
