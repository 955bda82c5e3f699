/* The model of the benchmarks, on the GPU: 13 numeric columns, 26 fields of one key each, MLPs 512-256-dim and 1024-1024-512-256-1; a
 * batch and rows in pinned memory. What goes wrong ends the program with a sentence. */
#ifndef TESTS_GPU_BENCH_MODEL_H
#define TESTS_GPU_BENCH_MODEL_H

#include "tests/gpu/op_monitor.h"
#include "worker/model/dlrm.h"

enum { BENCH_NUMERIC = 13, BENCH_FIELDS = 26 };

struct bench_model {
    struct dlrm *m;
    const struct batch *batch; /* borrowed */
    struct batch
        pinned; /* the same; label, where the block begins, numeric, starts and row_of are its own */
    uint32_t dim;
    float *rows, *row_grads[DLRM_BUFFER_SETS];

    /* Where gradients leave encoded (bench_model_encode()): */
    struct dlrm_encoded *gradients[DLRM_BUFFER_SETS]; /* owned; NULL: as they are */
    uint32_t *places;                                 /* i at i, for the longest gradient */
    uint8_t *bytes[DLRM_BUFFER_SETS];
};

const char *bench_products_name(enum device_products products);

/* Keys as frequent as in Criteo's click logs, field by field. Free it with batch_deinit(). */
void bench_batch_fill(struct batch *b, uint32_t n);

void bench_model_init(struct bench_model *x, struct op_monitor *w, const struct batch *batch,
                      uint32_t dim, enum device_products products);
void bench_model_deinit(struct bench_model *x);

/* From here on gradients leave by this codec, those of rows and of tensors, and their residuals stay on the device. */
void bench_model_encode(struct bench_model *x, enum codec_id codec);

void bench_model_begin(struct bench_model *x, uint32_t set);
double bench_model_end(struct bench_model *x, uint32_t set); /* its loss */

/* FNV-1a of what the buffer set's last step has made: loss, gradients of rows, dense gradients. */
uint64_t bench_model_digest(const struct bench_model *x, uint32_t set, double loss);

#endif
