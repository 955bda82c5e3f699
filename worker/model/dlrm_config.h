/* The shape and switches of a model, as settings choose them. */
#ifndef WORKER_MODEL_DLRM_CONFIG_H
#define WORKER_MODEL_DLRM_CONFIG_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/compute/device.h"

#define DLRM_LAYERS_MAX 8u /* hidden layers of one MLP */
#define DLRM_BATCH_MAX (1u << 20)
#define DLRM_THREADS_MAX 64u
#define DLRM_WIDTH_MAX (1u << 16) /* of a hidden layer; numeric columns; fields */

struct dlrm_config {
    uint32_t batch_max, n_numeric, n_fields, dim;
    /* Hidden widths; the last layer, to dim and to 1, is added by itself. */
    uint32_t n_bottom, bottom[DLRM_LAYERS_MAX];
    uint32_t n_top, top[DLRM_LAYERS_MAX];
    bool concat; /* interaction: concat instead of dot */
    bool self_interaction;
    bool wide;
    bool batch_norm;
    float dropout;  /* probability of 0, in [0, 1) */
    float l2_dense; /* loss += l2_dense / 2 * |W|^2 over weight matrices alone */
    float l2_rows;  /* loss += l2_rows / 2 * |row|^2 over the batch's unique rows */
    uint64_t seed;  /* dropout */

    uint32_t
        n_threads; /* that compute, the caller's among them; 0 is 1. They change no result */
    enum device_products products;
};

/* PS_ESETTING and a sentence with the name of the thing, what was found and what was
 * expected. */
int dlrm_config_check(const struct dlrm_config *config, struct err *err) MUST_CHECK;

/* Vectors of T; floats of a sample in R. */
uint32_t dlrm_config_n_vectors(const struct dlrm_config *config);
uint64_t dlrm_config_r_width(const struct dlrm_config *config);

#endif
