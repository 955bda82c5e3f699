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

static inline void fixture_fill(struct fixture_rng *rng, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = fixture_float(rng, scale);
}

/* Buffers of a batch with room for n_keys. */
static inline void fixture_batch_init(struct batch *b, uint32_t n_max, uint32_t n_numeric,
                                      uint32_t n_fields, uint32_t n_keys)
{
    *b = (struct batch){
        .n_max = n_max, .n_numeric = n_numeric, .n_fields = n_fields, .keys_cap = n_keys
    };
    b->label = memory_alloc(n_max * sizeof(float) + 1);
    b->numeric = memory_alloc((size_t)n_max * n_numeric * sizeof(float) + 1);
    b->starts = memory_alloc(((size_t)n_max * n_fields + 1) * sizeof(uint32_t));
    b->keys = memory_alloc(n_keys * sizeof(uint64_t) + 1);
    b->row_of = memory_alloc(n_keys * sizeof(uint32_t) + 1);
    b->unique = memory_alloc(n_keys * sizeof(uint64_t) + 1);
    b->order = memory_alloc(n_keys * sizeof(uint32_t) + 1);
    b->order_starts = memory_alloc((n_keys + 1) * sizeof(uint32_t));
}

static inline void fixture_batch_deinit(struct batch *b)
{
    free(b->label);
    free(b->numeric);
    free(b->starts);
    free(b->keys);
    free(b->row_of);
    free(b->unique);
    free(b->order);
    free(b->order_starts);
}

static inline int fixture_compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The positions that hold each row, the plain way. */
static inline void fixture_order(struct batch *b)
{
    uint32_t at = 0;

    for (uint32_t r = 0; r < b->n_unique; r++) {
        b->order_starts[r] = at;
        for (uint32_t i = 0; i < b->n_keys; i++)
            if (b->row_of[i] == r)
                b->order[at++] = i;
    }
    b->order_starts[b->n_unique] = at;
}

/* unique, n_unique, row_of and order from keys, the plain way. */
static inline void fixture_dedup(struct batch *b)
{
    uint32_t n = 0;

    if (b->n_keys)
        memcpy(b->unique, b->keys, b->n_keys * sizeof *b->keys);
    qsort(b->unique, b->n_keys, sizeof *b->unique, fixture_compare);
    for (uint32_t i = 0; i < b->n_keys; i++)
        if (!i || b->unique[i] != b->unique[n - 1])
            b->unique[n++] = b->unique[i];
    b->n_unique = n;
    for (uint32_t i = 0; i < b->n_keys; i++) {
        const uint64_t *at =
            bsearch(&b->keys[i], b->unique, n, sizeof *b->unique, fixture_compare);

        b->row_of[i] = (uint32_t)(at - b->unique);
    }
    fixture_order(b);
}

/* Bags of 0 to 3 keys out of a few, so that bags are empty, rows repeat, and fields share
 * rows. */
static inline void fixture_batch_fill(struct batch *b, uint32_t n, struct fixture_rng *rng)
{
    uint32_t at = 0;

    b->n = n;
    fixture_fill(rng, b->numeric, (size_t)n * b->n_numeric, 2);
    for (uint32_t s = 0; s < n; s++)
        b->label[s] = (float)fixture_below(rng, 2);
    for (uint32_t bag = 0; bag < n * b->n_fields; bag++) {
        for (uint32_t k = fixture_below(rng, 4); k > 0; k--)
            b->keys[at++] = fixture_below(rng, 3 + n);
        b->starts[bag + 1] = at;
    }
    b->n_keys = at;
    fixture_dedup(b);
}

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

/* Any mixture of sizes and switches; dlrm_config_check() refuses a few. */
static inline struct dlrm_config fixture_config(struct fixture_rng *rng,
                                                struct fixture_most most)
{
    struct dlrm_config c = { .batch_max = 1 + fixture_below(rng, most.samples),
                             .n_numeric = fixture_below(rng, 4),
                             .n_fields = fixture_below(rng, 5),
                             .dim = 1 + fixture_below(rng, most.dim),
                             .n_bottom = fixture_below(rng, 3),
                             .n_top = fixture_below(rng, 3),
                             .seed = rng->seed,
                             .n_threads = 1 };

    for (uint32_t i = 0; i < DLRM_LAYERS_MAX; i++) {
        c.bottom[i] = 1 + fixture_below(rng, most.width);
        c.top[i] = 1 + fixture_below(rng, most.width);
    }
    c.concat = fixture_below(rng, 3) == 0;
    c.self_interaction = fixture_below(rng, 2) == 0;
    c.wide = fixture_below(rng, 2) == 0;
    c.batch_norm = fixture_below(rng, 3) == 0;
    c.dropout = fixture_below(rng, 3) ? 0 : 0.3f;
    c.l2_dense = fixture_below(rng, 2) ? 0.1f : 0;
    c.l2_rows = fixture_below(rng, 2) ? 0.1f : 0;
    return c;
}

/* A model with random parameters on the device of these ops, and a random batch of n samples. */
static inline void fixture_init_on(struct fixture *f, const struct device_ops *ops,
                                   const struct dlrm_config *config, uint32_t n,
                                   struct fixture_rng *rng)
{
    struct err err = { 0 };
    size_t n_rows;

    *f = (struct fixture){ .config = *config };
    if (dlrm_new_on(ops, config, &f->m, &err))
        fail_msg("dlrm_new: %s", err.text);
    for (uint32_t i = 0; i < dlrm_n_tensors(f->m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(f->m, i);

        fixture_fill(rng, t->values, t->n_floats,
                     t->init == TABLE_SPEC_INIT_NORMAL ? 2 * t->init_scale : 0.5f);
    }
    fixture_batch_init(&f->batch, config->batch_max, config->n_numeric, config->n_fields,
                       3 * config->batch_max * config->n_fields);
    fixture_batch_fill(&f->batch, n, rng);
    n_rows = f->batch.n_unique;
    f->rows = memory_alloc(n_rows * config->dim * sizeof(float) + 1);
    f->row_grads = memory_alloc(n_rows * config->dim * sizeof(float) + 1);
    fixture_fill(rng, f->rows, n_rows * config->dim, 0.7f);
    if (config->wide) {
        f->wide = memory_alloc(n_rows * sizeof(float) + 1);
        f->wide_grads = memory_alloc(n_rows * sizeof(float) + 1);
        fixture_fill(rng, f->wide, n_rows, 0.7f);
    }
}

static inline void fixture_init(struct fixture *f, const struct dlrm_config *config, uint32_t n,
                                struct fixture_rng *rng)
{
    fixture_init_on(f, &device_cpu, config, n, rng);
}

static inline void fixture_deinit(struct fixture *f)
{
    dlrm_free(f->m);
    fixture_batch_deinit(&f->batch);
    free(f->rows);
    free(f->row_grads);
    free(f->wide);
    free(f->wide_grads);
}

static inline struct dlrm_step fixture_step_of(const struct fixture *f, uint64_t number)
{
    return (struct dlrm_step){ .batch = &f->batch,
                               .rows = f->rows,
                               .wide = f->wide,
                               .row_grads = f->row_grads,
                               .wide_grads = f->wide_grads,
                               .number = number };
}

static inline void fixture_step(struct fixture *f, uint64_t number)
{
    const struct dlrm_step step = fixture_step_of(f, number);

    assert_int_equal(dlrm_step(f->m, &step, &f->loss), 0);
}

static inline void fixture_predict(struct fixture *f)
{
    const struct dlrm_step step = fixture_step_of(f, 0);

    assert_int_equal(dlrm_predict(f->m, &step), 0);
}

/* Of the last step or prediction. */
static inline const float *fixture_read(struct fixture *f, const char *name)
{
    uint32_t n;
    const float *x = debug_read(f->m, name, &n);

    assert_non_null(x);
    return x;
}

#endif
