/*
 * What of a step lives where. On a device whose memory is the host's (compute_ops.shares_memory) ops
 * are given the caller's own arrays and nothing is copied. On another one each slot has memory of its
 * own for what comes in and goes out, so that the copies of one step run beside the ops of another:
 *
 *     in, each step        numeric, label, starts, row_of, uses, wide, dropout's keys; rows, but those
 *                          that have stayed there (dlrm_rows.h)
 *     in, when changed     values of the dense array; unchanged ones come from the slot that has them
 *     out                  row_grads, wide_grads, gradients of the dense array, loss; or probs
 *
 * What is between them (activations, their gradients) is the model's, once: the ops of steps do not
 * overlap. The dense array lies in the device's memory as in the host's, gaps included: one copy.
 *
 * Arrays whose size the data decide (keys, rows) grow when a batch needs it, with room to spare; then
 * the slot's addresses are others, and so is every key of its records (compute_ops.begin).
 */
#ifndef WORKER_MODEL_DLRM_PLACE_H
#define WORKER_MODEL_DLRM_PLACE_H

#include "worker/compute/compute.h"
#include "worker/compute/uses.h"
#include "worker/model/dlrm_config.h"
#include "worker/model/dlrm_rows.h"

/* In the device's memory; PROBS is the last. */
enum dlrm_place_array {
    PLACE_NUMERIC,
    PLACE_LABEL,
    PLACE_STARTS,
    PLACE_ROW_OF,
    PLACE_USES,
    PLACE_ROWS,
    PLACE_WIDE,
    PLACE_DROP_KEYS,
    PLACE_VALUES,
    PLACE_ROW_GRADS,
    PLACE_WIDE_GRADS,
    PLACE_GRADS,
    PLACE_LOSS,
    PLACE_PROBS,
    PLACE_N_ARRAYS
};

/* What ops are given. */
struct dlrm_io {
    uint32_t n; /* samples */
    uint32_t
        n_rows; /* that there is room for: what is behind the batch's own is never looked at */
    const float *numeric, *label, *rows, *wide, *values;
    const uint64_t *drop_keys; /* a training step's (mlp_forward()) */
    struct bags bags;
    float *row_grads, *wide_grads, *grads, *probs;
    double *loss;
    const struct compute_encode *encodes; /* how gradients leave (dlrm_flows.h) */
    uint32_t n_encodes;                   /* 0: as they are */
    uint64_t key;                         /* of the record */
};

struct dlrm_place_slot {
    void *arrays
        [PLACE_N_ARRAYS]; /* owned, of the device; NULL where there is none, and everywhere on
                                     a device that shares its memory */
    uint32_t keys_cap, rows_cap;
    void *host_uses; /* owned, of the host: what PLACE_USES is a copy of */
    struct uses fill;
    struct bag_uses uses;
    uint64_t *host_drop_keys; /* owned, of the host; NULL without dropout */
    double *loss;             /* owned, of the host */
    uint64_t generation;      /* of the addresses */
    uint64_t values_seen;     /* which values of the dense array are here */
    bool values_again;        /* they came from another slot, and this one is not judged yet */
    uint64_t n_doubts;        /* when they came */
    bool busy;                /* between in and wait */
};

struct dlrm_place {
    const struct compute_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_max, n_numeric, n_fields, dim;
    bool wide;
    uint32_t n_drop_keys; /* hidden layers of the top MLP; 0 without dropout */
    uint64_t seed;        /* dropout */
    size_t dense_floats;
    float *values, *grads;           /* owned, of the host: the model's own dense array */
    float *host_values, *host_grads; /* borrowed: the one in use */
    float *probs;                    /* owned, of the host */
    uint64_t n_generations, n_values;
    uint64_t n_doubts; /* how often no slot's values were trusted any more */
    struct dlrm_place_slot slots[DLRM_SLOTS];
    struct dlrm_rows rows; /* those that stay there from step to step */
};

/* What does not depend on data. -ENOMEM; deinit is then due all the same. ops and c are borrowed. */
int dlrm_place_init(struct dlrm_place *p, const struct compute_ops *ops, struct compute *c,
                    const struct dlrm_config *config, size_t dense_floats) MUST_CHECK;

/* Accepts a zeroed struct. No step is under way. */
void dlrm_place_deinit(struct dlrm_place *p);

/* The host's dense array from here on; NULL: the model's own. */
void dlrm_place_use(struct dlrm_place *p, float *values, float *grads);

enum dlrm_place_way { PLACE_TRAIN, PLACE_PREDICT };

/* Copies in what the step needs, and says where the ops find it. -ENOMEM: nothing is under way. */
int dlrm_place_in(struct dlrm_place *p, uint32_t slot, const struct dlrm_step *step,
                  enum dlrm_place_way way, struct dlrm_io *ret) MUST_CHECK;

/* Behind the last op: copies out; not the gradients of a step that has step->travel. */
void dlrm_place_out(struct dlrm_place *p, uint32_t slot, const struct dlrm_step *step,
                    enum dlrm_place_way way);

/* Until the slot is done: its outputs are in the host's memory. *ret_loss: of a training step; NaN after
 * a failure, the device's. */
int dlrm_place_wait(struct dlrm_place *p, uint32_t slot, double *ret_loss) MUST_CHECK;

/*
 * Between dlrm_place.c, a step's copies, and dlrm_place_room.c, sizes and memory.
 *
 * counts, first, spans, bags: one behind the other, one copy. Those of a batch end with its last key.
 */
size_t dlrm_place_uses_bytes(const struct dlrm_place_slot *s, uint32_t n_keys);

/* For the batch's keys and rows, in a slot at rest; what was there is gone if it had too little. -ENOMEM:
 * there is no room now. */
int dlrm_place_make_room(struct dlrm_place *p, struct dlrm_place_slot *s,
                         const struct batch *batch) MUST_CHECK;

#endif
