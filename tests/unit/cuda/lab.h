/*
 * What tests of kernels share: memory with the sanitizer's fence right behind it, inputs drawn from PS_SEED, and
 * runs in each order of threads, all of which must end in the same bits.
 */
#ifndef TESTS_UNIT_CUDA_LAB_H
#define TESTS_UNIT_CUDA_LAB_H

#include <math.h>

#include "tests/unit/cuda/lab_device.h"
#include "worker/compute/device.h"
#include "worker/cuda/kernels.h"

enum { LAB_OWNED_MAX = 256, LAB_OUTS_MAX = 8, LAB_ORDERS = 4 };

/* Forward, backward, and two that are drawn. */
struct lab {
    struct fixture_rng rng;
    uint64_t orders[LAB_ORDERS];
    struct compute *cpu; /* owned */
    void *owned[LAB_OWNED_MAX];
    size_t n_owned;
};

int lab_open(void **state);

/* Frees all that was handed out. */
void lab_sweep(struct lab *lab);

int lab_close(void **state);

/* NaN, whatever is read of it; at an address that is no multiple of 16 with `shift`. */
void *lab_blank(struct lab *lab, size_t n_bytes, size_t shift);

/* In [-1, 1). */
float *lab_floats(struct lab *lab, size_t n, size_t shift);

static inline uint32_t lab_below(struct lab *lab, uint32_t end)
{
    return fixture_below(&lab->rng, end);
}

/* Where a kernel writes: `start` stands there before, or NaN. */
struct lab_out {
    void *at;
    size_t n_bytes;
    const void *start;
};

/* What was launched is done. */
void lab_ran(cudaError_t launched);

typedef cudaError_t lab_run(void *job);

/* Runs it in each order; outs ends with {0}. What the first run made is left in them, and the others made
 * the same bits. */
void lab_each_order(struct lab *lab, lab_run *run, void *job, const struct lab_out *outs);

/* n sums in double, and what they would be if nothing cancelled out; 0 at first. */
struct lab_sums {
    double *at, *magnitude;
};

struct lab_sums lab_sums(struct lab *lab, size_t n);

static inline void lab_add(struct lab_sums s, size_t i, double a, double b)
{
    s.at[i] += a * b;
    s.magnitude[i] += fabs(a * b);
}

/* R of one sample's T, from number at_r of r on, and what dr makes of the pairs' gradients, from number at_t of dt on. */
void lab_interact(const struct interact *it, const float *t, const float *dr, struct lab_sums r,
                  size_t at_r, struct lab_sums dt, size_t at_t);

/* Bags of no row, of one, or, one in four, of less than keys_end. */
struct lab_bags {
    uint32_t *starts, *row_of;
};

struct lab_bags lab_bags(struct lab *lab, uint32_t n_bags, uint32_t n_rows, uint32_t keys_end);

/* Bit for bit. */
void lab_same(const float *got, const float *want, size_t n);

/* Each within `tolerance` of its magnitude: what it would be if nothing cancelled out. */
void lab_near(const float *got, const double *want, const double *magnitude, size_t n,
              double tolerance);

#endif
