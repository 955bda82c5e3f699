/* Models, batches and rows for the tests of this folder, filled by hand from a seed. */
#ifndef TESTS_UNIT_MODEL_FIXTURE_H
#define TESTS_UNIT_MODEL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"
#include "tests/unit/model/debug_read.h"
#include "worker/model/dlrm.h"

struct fixture {
    struct dlrm_config config;
    struct dlrm *m;
    struct batch batch;
    struct batch_groups groups; /* of the batch, if the model has some: field f's is f % n */
    uint8_t *of_field;
    float *rows, *wide, *row_grads, *wide_grads;
    double loss; /* of the last step */
};

struct fixture_rng {
    uint64_t seed, i;
};

static inline uint32_t fixture_below(struct fixture_rng *rng, uint32_t end)
{
    return (uint32_t)(hash_mix2(rng->seed, rng->i++) % end);
}

/* In [-scale, scale). */
static inline float fixture_float(struct fixture_rng *rng, float scale)
{
    return (2 * hash_unit(hash_mix2(rng->seed, rng->i++)) - 1) * scale;
}

void fixture_fill(struct fixture_rng *rng, float *x, size_t n, float scale);

/* Buffers of a batch with room for n_keys. */
void fixture_batch_init(struct batch *b, uint32_t n_max, uint32_t n_numeric, uint32_t n_fields,
                        uint32_t n_keys);

void fixture_batch_deinit(struct batch *b);

/* unique, n_unique, row_of and order from keys, the plain way. */
void fixture_dedup(struct batch *b);

/* Bags of 0 to 3 keys out of a few, so that bags are empty, rows repeat, and fields (of a group) share
 * rows. */
void fixture_batch_fill(struct batch *b, uint32_t n, struct fixture_rng *rng);

/* The small model with which most tests do. */
static const struct dlrm_config fixture_plain = { .batch_max = 16,
                                                  .n_numeric = 3,
                                                  .n_fields = 4,
                                                  .dim = 8,
                                                  .n_bottom = 1,
                                                  .bottom = { 5 },
                                                  .n_top = 2,
                                                  .top = { 6, 5 },
                                                  .seed = 11 };

/* The most that a drawn model has of each. */
struct fixture_most {
    uint32_t samples, dim, width; /* of hidden layers */
};

/* Makes of a DLRM's settings those of another kind, which has the same shape as far as it has its parts. */
void fixture_turn_into(struct dlrm_config *config, enum model_kind kind);

/* Any kind of model, half of them a DLRM, and any mixture of sizes and switches; dlrm_config_check() refuses a few. */
struct dlrm_config fixture_config(struct fixture_rng *rng, struct fixture_most most);

/* A model with random parameters on the device of these ops, and a random batch of n samples. */
void fixture_init_on(struct fixture *f, const struct device_ops *ops,
                     const struct dlrm_config *config, uint32_t n, struct fixture_rng *rng);

/* Fails with the device's sentence if a step has failed. */
void fixture_must(const struct dlrm *m, int status);

void fixture_init(struct fixture *f, const struct dlrm_config *config, uint32_t n,
                  struct fixture_rng *rng);
void fixture_deinit(struct fixture *f);
struct dlrm_step fixture_step_of(const struct fixture *f, uint64_t number);
void fixture_step(struct fixture *f, uint64_t number);
void fixture_predict(struct fixture *f);

/* All n together within `tolerance` of their norm. */
void fixture_near(const char *what, const float *got, const float *want, size_t n,
                  double tolerance);

/* Of the last step or prediction. */
const float *fixture_read(struct fixture *f, const char *name);

#endif
