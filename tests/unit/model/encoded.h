/*
 * Steps whose gradients leave a device encoded, against the same steps whose floats the CPU's op encodes: models, batches and
 * gradients are drawn from a seed, and residuals move from step to step. As many steps are in flight as the model takes.
 */
#ifndef TESTS_UNIT_MODEL_ENCODED_H
#define TESTS_UNIT_MODEL_ENCODED_H

#include <math.h>

#include "proto/codec_catalog.h"
#include "tests/unit/model/fixture.h"

/* --- two models side by side, one of which encodes its gradients on a device, and their residuals --- */

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

/* ---- the two models ---- */

struct dlrm *encoded_model(const struct device_ops *device, const struct dlrm_config *config);
void encoded_open(struct encoded_run *t, const struct device_ops *plain,
                  const struct device_ops *device, const struct dlrm_config *config,
                  uint64_t seed);

/* blocks: of each tensor, the length of its table's blocks; NULL: the model's. */
void encoded_open_in_blocks(struct encoded_run *t, const struct device_ops *plain,
                            const struct device_ops *device, const struct dlrm_config *config,
                            uint64_t seed, const uint32_t *blocks);
void encoded_close(struct encoded_run *t);

/* ---- a step ---- */

size_t encoded_bytes(struct encoded_run *t, const struct encoded_step *s, uint32_t gradient);
void encoded_draw(struct encoded_run *t, struct encoded_step *s);

/* The step to make; its result is known, and so are the residuals. */
struct dlrm_step encoded_prepare(struct encoded_run *t, uint32_t set, uint64_t number);

void encoded_begin(struct encoded_run *t, uint32_t set, uint64_t number);
void encoded_free_step(struct encoded_run *t, struct encoded_step *s);
void encoded_end(struct encoded_run *t, uint32_t set);

/* As many steps at a time as the device takes. */
void encoded_run(struct encoded_run *t, uint32_t n_steps);

struct dlrm_config encoded_config(struct fixture_rng *rng);

#endif
