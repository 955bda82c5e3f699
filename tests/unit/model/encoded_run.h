/* Two models side by side, one of which encodes its gradients on a device, and their residuals; steps are in encoded.h. */
#ifndef TESTS_UNIT_MODEL_ENCODED_RUN_H
#define TESTS_UNIT_MODEL_ENCODED_RUN_H

#include <math.h>

#include "proto/codec_catalog.h"
#include "tests/unit/model/fixture.h"

enum {
    ENCODED_STEPS = 12,
    ENCODED_SAMPLES = 40,
    ENCODED_PLACES = 64, /* residual rows, of rows and of wide weights */
    ENCODED_GAP = 3      /* bytes between those of two gradients, in some steps */
};

/* One that is under way. */
struct encoded_step {
    struct fixture f; /* its batch and rows; the model is the run's */
    struct dlrm_encoded gradients[DLRM_GRADIENTS_MAX];
    uint32_t *from[DLRM_GRADIENTS_MAX], *residual_at[DLRM_GRADIENTS_MAX];
    uint8_t *bytes, *want;
    size_t n_bytes;
};

struct encoded_run {
    struct fixture_rng rng;
    struct dlrm_config config;
    struct dlrm *plain, *m;
    struct compute *cpu;
    float *residual[DLRM_GRADIENTS_MAX]; /* what must be */
    enum codec_id codecs[DLRM_GRADIENTS_MAX];
    struct encoded_step steps[DLRM_BUFFER_SETS];
};

static inline uint32_t encoded_width(struct encoded_run *t, uint32_t gradient)
{
    uint32_t n_floats;

    if (gradient < DLRM_DENSE)
        return gradient == DLRM_ROWS ? t->config.dim : 1;
    n_floats = dlrm_tensor(t->m, gradient - DLRM_DENSE)->n_floats;
    return n_floats < TABLE_SPEC_DENSE_BLOCK ? n_floats : TABLE_SPEC_DENSE_BLOCK;
}

/* Of rows: places of what they are owed. */
static inline uint32_t encoded_n_rows(struct encoded_run *t, uint32_t gradient)
{
    const uint32_t width = encoded_width(t, gradient);

    return gradient < DLRM_DENSE
               ? ENCODED_PLACES
               : (dlrm_tensor(t->m, gradient - DLRM_DENSE)->n_floats + width - 1) / width;
}

static inline bool encoded_has(const struct encoded_run *t, uint32_t gradient)
{
    return gradient != DLRM_WIDE || t->config.wide;
}

/* n of `end` places, each at most once; some are none, and all that are too many. */
static inline void encoded_draw_places(struct fixture_rng *rng, uint32_t *at, uint32_t n,
                                       uint32_t end)
{
    uint32_t *pool = memory_alloc((n + end) * sizeof *pool + 1);

    for (uint32_t i = 0; i < n + end; i++)
        pool[i] = i < end ? i : DLRM_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = i < end ? i + fixture_below(rng, end - i) : i;

        at[i] = fixture_below(rng, 6) ? pool[other] : DLRM_NONE;
        pool[other] = pool[i];
    }
    free(pool);
}

/* ---- the two models ---- */

static inline struct dlrm *encoded_model(const struct device_ops *device,
                                         const struct dlrm_config *config)
{
    struct dlrm *m = NULL;
    struct err err = { 0 };

    if (dlrm_new_on(device, config, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* A place for everything that is owed, and something owed there. */
static inline void encoded_owe(struct encoded_run *t, uint32_t gradient)
{
    const uint32_t n = encoded_n_rows(t, gradient), width = encoded_width(t, gradient);
    uint32_t *at = memory_alloc(n * sizeof *at);

    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    t->residual[gradient] = memory_alloc((size_t)n * width * sizeof(float));
    fixture_fill(&t->rng, t->residual[gradient], (size_t)n * width, 0.01f);
    assert_int_equal(dlrm_residual_reserve(t->m, gradient, n), 0);
    assert_int_equal(dlrm_residual_put(t->m, gradient, at, n, t->residual[gradient]), 0);
    free(at);
}

static inline void encoded_open(struct encoded_run *t, const struct device_ops *plain,
                                const struct device_ops *device,
                                const struct dlrm_config *config, uint64_t seed)
{
    *t = (struct encoded_run){ .rng = { seed, 0 }, .config = *config };
    assert_int_equal(device_cpu.open(&(struct device_options){ 1, DEVICE_BLAS }, &t->cpu, NULL),
                     0);
    t->plain = encoded_model(plain, config);
    t->m = encoded_model(device, config);
    assert_true(dlrm_encodes(t->m));
    assert_int_equal(dlrm_n_gradients(t->m), DLRM_DENSE + dlrm_n_tensors(t->m));
    for (uint32_t i = 0; i < dlrm_n_tensors(t->m); i++) {
        const struct dlrm_tensor *to = dlrm_tensor(t->m, i), *also = dlrm_tensor(t->plain, i);

        fixture_fill(&t->rng, to->values, to->n_floats, 0.5f);
        memcpy(also->values, to->values, to->n_floats * sizeof(float));
    }
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        if (encoded_has(t, i))
            encoded_owe(t, i);
}

/* What the device says it owes, asked for in an order of its own. */
static inline void encoded_check_residuals(struct encoded_run *t, uint32_t gradient)
{
    const uint32_t n = encoded_n_rows(t, gradient), width = encoded_width(t, gradient);
    uint32_t *at = memory_alloc(n * sizeof *at), n_asked = 0;
    float *got = memory_alloc((size_t)n * width * sizeof(float));

    encoded_draw_places(&t->rng, at, n, n);
    for (uint32_t i = 0; i < n; i++)
        if (at[i] != DLRM_NONE)
            at[n_asked++] = at[i];
    assert_int_equal(dlrm_residual_get(t->m, gradient, at, n_asked, got), 0);
    for (uint32_t i = 0; i < n_asked; i++)
        if (memcmp(got + (size_t)i * width, t->residual[gradient] + (size_t)at[i] * width,
                   width * sizeof *got) != 0)
            fail_msg("gradient %u: row %u is owed something else", gradient, at[i]);
    free(at);
    free(got);
}

static inline void encoded_close(struct encoded_run *t)
{
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        free(t->residual[i]);
    dlrm_free(t->plain);
    dlrm_free(t->m);
    device_cpu.close(t->cpu);
}

#endif
