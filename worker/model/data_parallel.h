/*
 * A training step on several devices, each with a part of the batch (data parallelism): the parts, and their
 * gradients as those of the whole batch.
 *
 *     part d of D    samples n d / D to n (d + 1) / D - 1, their bags, and the rows of these bags' keys, in the order
 *                    of the batch's
 *     its weight     its share of the samples, w_d = n_d / n
 *     gradient       sum of w_d times that of part d's mean loss, d ascending, of the parts that have the row
 *     loss           likewise
 *
 * So a batch needs one pull and one push, and a row that several parts have travels once. The order of the sums is
 * fixed: the same batch has the same bits in each run on so many devices, and other roundings on another number of
 * them. Batch normalisation has the mean and variance of a part.
 *
 * Rows are copied to their parts, and gradients added, by the host, on n_threads threads, which change no bit.
 */
#ifndef WORKER_MODEL_DATA_PARALLEL_H
#define WORKER_MODEL_DATA_PARALLEL_H

#include "worker/compute/device.h"
#include "worker/model/dlrm_config.h"
#include "worker/model/dlrm_types.h"

struct data_parallel;

/* Where the gradients of a batch go; all borrowed. */
struct data_parallel_sums {
    float *dense, *rows, *wide; /* wide: NULL unless config.wide */
};

/* For config->n_devices parts. Arrays that devices copy are of this device's host memory. ops, c and config are
 * borrowed. -ENOMEM, or the errno of a thread that does not start. */
int data_parallel_new(const struct device_ops *ops, struct compute *c,
                      const struct dlrm_config *config, size_t dense_floats,
                      struct data_parallel **ret) MUST_CHECK;

/* NULL is fine. No step is in flight. */
void data_parallel_free(struct data_parallel *p);

/* Makes the parts of a step or prediction in a buffer set that has none in flight. What `step` borrows stays until
 * data_parallel_add() or the prediction's end. -ENOMEM. */
int data_parallel_divide(struct data_parallel *p, uint32_t set, const struct dlrm_step *step)
    MUST_CHECK;

/* Part d as a step, without keeps_dense; *ret_grads: its dense gradients' place. False: the part has no samples. */
bool data_parallel_part(const struct data_parallel *p, uint32_t set, uint32_t d,
                        struct dlrm_step *ret, float **ret_grads);

/* The number of part d's first sample in the batch. */
uint32_t data_parallel_first(const struct data_parallel *p, uint32_t set, uint32_t d);

/* When the parts' gradients are there: those of the batch, with the L2 term of its rows. losses: of the parts that
 * have samples. Returns the batch's loss. */
double data_parallel_add(struct data_parallel *p, uint32_t set, const double *losses,
                         const struct data_parallel_sums *to);

#endif
