/* device_cuda on the emulated device, for tests that take the worker's own way: memory, copies, buffer sets. */
#ifndef TESTS_UNIT_CUDA_RIG_H
#define TESTS_UNIT_CUDA_RIG_H

#include <math.h>

#include "tests/emu/lt.h"
#include "tests/emu/rt.h"
#include "tests/unit/model/fixture.h"
#include "worker/cuda/device_cuda.h"

static const struct device_ops *const ops = &device_cuda;

enum { RIG_OWNED_MAX = 64 };

struct rig {
    struct compute *c;
    struct fixture_rng rng;
    struct rig_owned {
        void *memory;
        size_t n_bytes;
    } owned[RIG_OWNED_MAX];
    uint32_t n_owned;
};

uint64_t rig_seed(void);

/* First thing in a test of what no real GPU can be made to do, or be asked. */
void rig_needs_emulation(void);

/* The scheduler's order and the inputs come from `seed`. With RIG_WITHOUT_BF16 in the environment products in bf16 are in
 * TF32: for tools that do not know the library's kernels for them (tests/gpu/sanitizer.sh). */
struct rig rig_open(uint64_t seed, enum device_products products);

/* All that was handed out is freed. */
void rig_sweep(struct rig *r);

void rig_close(struct rig *r);

/* Of the device, zeroed: with a dependency lost, ops read before it is written, and rows' numbers have to be some. */
float *rig_floats(struct rig *r, size_t n);

/* Likewise, of these values; `shift` floats behind an address that is aligned. */
/* Fails with the device's sentence. */
void rig_wait(struct rig *r, uint32_t set);

float *rig_put(struct rig *r, const float *x, size_t n, size_t shift);

void rig_get(struct rig *r, float *x, const float *memory, size_t n);

/* In [-1, 1), of the host; free(). */
float *rig_random(struct rig *r, size_t n);

/* The norm of the difference is at most `tolerance` of the norm. */
void rig_near(const char *what, const float *got, const double *want, size_t n,
              double tolerance);

#endif
