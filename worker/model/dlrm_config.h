/* The shape and switches of a model, as settings choose them. */
#ifndef WORKER_MODEL_DLRM_CONFIG_H
#define WORKER_MODEL_DLRM_CONFIG_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/compute/device.h"
#include "worker/data/batch.h"

#define DLRM_LAYERS_MAX 8u /* hidden layers of one MLP */
#define DLRM_CROSS_MAX 8u  /* layers of a cross network */
#define DLRM_HATS_MAX 64u  /* of a numeric column */
#define DLRM_TASKS_MAX 8u  /* labels of a sample */
#define DLRM_PROJECTIONS_MAX 16u
#define DLRM_MEANS_MAX 1024u /* fields that can have a mean for a bag: the first ones */
#define DLRM_BATCH_MAX (1u << 20)
#define DLRM_THREADS_MAX 64u
#define DLRM_DEVICES_MAX 16u
#define DLRM_WIDTH_MAX (1u << 16) /* of a hidden layer; numeric columns; fields */

/* What stands between a batch and its logits (head.h). */
enum model_kind {
    MODEL_DLRM,
    MODEL_LR,
    MODEL_FM,
    MODEL_WIDE_DEEP,
    MODEL_DEEPFM,
    MODEL_DCNV2,
    MODEL_KINDS
};

/* The names of --model, in the order of the kinds. */
#define MODEL_KIND_NAMES "dlrm|lr|fm|wide_deep|deepfm|dcnv2"

/* What a kind of model is made of. */
enum model_part {
    MODEL_EMBEDDINGS =
        1, /* rows of dim floats; without it rows are first-order weights, dim is 1 */
    MODEL_BOTTOM = 2,       /* a bottom MLP of the numeric columns */
    MODEL_INTERACTION = 4,  /* dot products, or concat: interaction, self_interaction */
    MODEL_TOP = 8,          /* a top MLP */
    MODEL_LINEAR = 16,      /* a linear layer of the numeric columns, to the logit */
    MODEL_FIRST_ORDER = 32, /* always with config.wide */
    MODEL_CROSS = 64        /* a cross network below the top MLP: n_cross, cross_rank */
};

struct dlrm_config {
    enum model_kind kind;
    uint32_t batch_max, n_numeric, n_fields, dim;
    /* Hats of each numeric column (worker/compute/device_args.h, struct number_hats), and the first one's peak; 0 hats:
     * the numbers themselves are the model's inputs, and none is missing. */
    uint32_t n_hats;
    float first_hat;
    /* Floats of the rows of each group of fields (batch.h), which projection.h makes as wide as the model; 0 groups:
     * all have dim. */
    uint32_t n_groups, group_dims[BATCH_GROUPS_MAX];
    /* A bit for each field, from bit 0 of the first word: the vector of its bag is the mean of the rows, not the sum.
     * First-order weights are always summed. */
    uint64_t means[DLRM_MEANS_MAX / 64];
    /* Hidden widths; the last layer, to dim and to 1, is added by itself. */
    uint32_t n_bottom, bottom[DLRM_LAYERS_MAX];
    uint32_t n_top, top[DLRM_LAYERS_MAX];
    /* Labels of a sample, each a logit of the top MLP: 0 is 1. Of several each has a weight in the loss. */
    uint32_t n_tasks;
    float task_weights[DLRM_TASKS_MAX];
    uint32_t n_cross;    /* layers of the cross network */
    uint32_t cross_rank; /* of its matrices; 0: full */
    bool concat;         /* interaction: concat instead of dot */
    bool self_interaction;
    bool wide; /* first-order weights beside the rows */
    bool batch_norm;
    bool whole_layers; /* tensors are one block each (dlrm_tensor.block) */
    float dropout;     /* probability of 0, in [0, 1) */
    float l2_dense;    /* loss += l2_dense / 2 * |W|^2 over weight matrices alone */
    float l2_rows;     /* loss += l2_rows / 2 * |row|^2 over the batch's unique rows */
    float clip_norm;   /* bound on the norm of all gradients of a batch; 0: none */
    /* Of the training's loss (worker/compute/device_args.h, struct cross_entropy): the weight of positive samples - 1;
     * what is added to the logit: of training on a part of the negative samples, so that predictions hold for all. */
    float positive_more, label_smoothing, logit_offset;
    uint64_t seed; /* dropout */

    uint32_t
        n_threads; /* that compute, the caller's among them; 0 is 1. They change no result */
    enum device_products products;
    struct device_place place;
    /* The numbers of several devices that share each batch (data_parallel.h), in place of the one at `place`; 0 or 1:
     * one device. */
    uint32_t n_devices, devices[DLRM_DEVICES_MAX];
};

/* PS_ESETTING and a sentence with the name of the thing, what was found and what was
 * expected. */
int dlrm_config_check(const struct dlrm_config *config, struct err *err) MUST_CHECK;

/* Parts, as bits of enum model_part; and the kind's name. */
uint32_t dlrm_config_parts(enum model_kind kind);
const char *dlrm_config_kind_name(enum model_kind kind);

/* Logits of a sample; a task's weight, which is 1 if there is only one. */
uint32_t dlrm_config_n_tasks(const struct dlrm_config *config);
float dlrm_config_task_weight(const struct dlrm_config *config, uint32_t task);

/* What the numeric columns of a sample are to the model, in floats. */
uint32_t dlrm_config_n_inputs(const struct dlrm_config *config);

/* Groups whose rows are projected. */
uint32_t dlrm_config_n_projections(const struct dlrm_config *config);

/* Floats of the widest row as it comes; of all rows of a batch. */
uint32_t dlrm_config_row_width(const struct dlrm_config *config);
size_t dlrm_config_row_floats(const struct dlrm_config *config, const struct batch *batch);

/* The next run of fields with means, first .. end - 1, from field `from` on; false: there is none. */
bool dlrm_config_means(const struct dlrm_config *config, uint32_t from, uint32_t *ret_first,
                       uint32_t *ret_end);

/* Vectors of T; floats of a sample in the top MLP's input, which is R in a DLRM. */
uint32_t dlrm_config_n_vectors(const struct dlrm_config *config);
uint64_t dlrm_config_r_width(const struct dlrm_config *config);

#endif
