/*
 * T of the models beside DLRM: a sample's bags side by side and, if a top MLP reads them, its numeric columns behind
 * them.
 *
 *     T [n][n_fields dim + n_numeric], ldt     gaps are zeros
 */
#ifndef WORKER_MODEL_CONCAT_H
#define WORKER_MODEL_CONCAT_H

#include "worker/model/dlrm_internal.h"

/* Adds the top MLP on T, if the kind has one. */
void concat_plan(struct dlrm *m);

/* T and dT, and the top MLP, whose output are m->z and m->dz then. -ENOMEM: deinit is due all the same. */
int concat_alloc(struct dlrm *m) MUST_CHECK;
void concat_deinit(struct dlrm *m);

/* T */
void concat_forward(struct dlrm *m, const struct dlrm_io *io);

/* Gradients of the rows, from dT. */
void concat_backward(struct dlrm *m, const struct dlrm_io *io);

#endif
