/*
 * What a model does between the inputs of a step and its logits, as a table of functions: one for each kind
 * (enum model_kind). dlrm.c has the rest of a step: inputs and outputs, loss, L2, encoded gradients.
 *
 *     head_dlrm.c        bottom MLP, bags, interaction, top MLP
 *     head_dlrm_bf16.c   the same with activations in bf16, on a device that has them (device_bf16.h)
 *     head_lr.c          z = first-order term
 *     head_fm.c          z = first-order term + pairs
 *     head_wide_deep.c   z = first-order term + top MLP of the bags and numeric columns
 *     head_deepfm.c      z = first-order term + pairs + top MLP
 *     head_dcnv2.c       z = top MLP of a cross network of the bags and numeric columns
 */
#ifndef WORKER_MODEL_HEAD_H
#define WORKER_MODEL_HEAD_H

#include "worker/model/dlrm_internal.h"

struct head {
    /* Shapes and tensors. No memory. */
    void (*plan)(struct dlrm *m);

    /* Its arrays; m->z and m->dz are some of them then. -ENOMEM: deinit is due all the same. */
    int (*alloc)(struct dlrm *m);
    void (*deinit)(struct dlrm *m);

    /* m->z [n] */
    void (*forward)(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass);

    /* m->dz is filled: gradients of the tensors, of the rows, and of first-order weights. */
    void (*backward)(struct dlrm *m, const struct dlrm_io *io);
};

extern const struct head head_dlrm, head_lr, head_fm, head_wide_deep, head_deepfm, head_dcnv2;

/* For models of MODEL_DLRM that head_dlrm_bf16_fits(). */
extern const struct head head_dlrm_bf16;
bool head_dlrm_bf16_fits(const struct device_ops *ops, const struct dlrm_config *config);

#endif
