/*
 * Gradients that leave a device encoded (dlrm_travel.h): what they are owed, as long as the model lives; in each slot room for what
 * comes in and goes out; and the ops between.
 *
 * A slot's room is one piece of the device's memory,
 *
 *     counts [flows], from and owed_at of each flow, bytes of the rows, of the wide ones, of all tensors
 *
 * that grows with a step's rows as dlrm_place.h's arrays do. The tensors' bytes lie one behind the other, and what a caller
 * wants one behind the other, too, is one copy. A flow that leaves as floats, all rows in order and nothing added, needs no op: its
 * bytes are the gradients themselves.
 *
 * Codecs, and which arrays there are, are arguments of the ops, and so part of their record (compute_ops.begin): a key
 * stands for that of the step without them and for every argument of every encode.
 */
#ifndef WORKER_MODEL_DLRM_FLOWS_H
#define WORKER_MODEL_DLRM_FLOWS_H

#include "worker/compute/compute.h"
#include "worker/model/dlrm_place.h"
#include "worker/model/dlrm_travel.h"

#define DLRM_FLOWS_KEYS 8u /* of a slot, that are known again */

struct dlrm_flows_owed {
    uint32_t width;  /* 0: the model has none */
    size_t at;       /* tensors: where in the dense array */
    uint32_t n_owed; /* rows */
    float *owed;     /* owned, of the device; NULL: none */
};

struct dlrm_flows_room {
    void *memory; /* owned, of the device */
    size_t n_bytes;
    uint32_t *counts; /* owned, of the host */
    uint32_t rows_cap[DLRM_FLOWS_MAX];
    size_t bytes_cap[DLRM_DENSE + 1]; /* the last: of all tensors */

    const uint8_t *bytes
        [DLRM_FLOWS_MAX]; /* of the step under way, where they are in the device's memory */

    /* Owned: what the ops of the step under way are given, and what those of known keys were. */
    struct compute_encode *encodes;
    struct dlrm_flows_key {
        uint64_t step, key;
        uint32_t n;
        struct compute_encode *encodes; /* owned */
    } keys[DLRM_FLOWS_KEYS];
    uint32_t n_keys; /* so far; the oldest goes */
};

struct dlrm_flows {
    const struct compute_ops *ops; /* borrowed, as c */
    struct compute *c;
    uint32_t n;
    struct dlrm_flows_owed at[DLRM_FLOWS_MAX];
    struct dlrm_flows_room rooms[DLRM_SLOTS];
    uint64_t n_keys;
};

/* tensors: n of them, with their places; read here alone. */
void dlrm_flows_init(struct dlrm_flows *f, const struct compute_ops *ops, struct compute *c,
                     const struct dlrm_config *config, const struct dlrm_tensor *tensors,
                     uint32_t n_tensors);

/* Accepts a zeroed struct. No step is under way. */
void dlrm_flows_deinit(struct dlrm_flows *f);

/* dlrm_owed_reserve(), dlrm_owed_release(), dlrm_owed_put(), dlrm_owed_get() */
int dlrm_flows_owe(struct dlrm_flows *f, uint32_t flow, uint32_t n_rows) MUST_CHECK;
void dlrm_flows_release(struct dlrm_flows *f);
int dlrm_flows_put(struct dlrm_flows *f, uint32_t flow, const uint32_t *at, uint32_t n,
                   const float *rows) MUST_CHECK;
int dlrm_flows_get(struct dlrm_flows *f, uint32_t flow, const uint32_t *at, uint32_t n,
                   float *rows) MUST_CHECK;

/* For a step in a slot at rest. -ENOMEM: there is none now. */
int dlrm_flows_make_room(struct dlrm_flows *f, uint32_t slot, const struct dlrm_travel *travel)
    MUST_CHECK;

/* Behind dlrm_place_in(): copies in, and what io then says of ops and key. Room has been made. */
void dlrm_flows_in(struct dlrm_flows *f, uint32_t slot, const struct dlrm_travel *travel,
                   struct dlrm_io *io);

/* Behind the last op: the bytes. */
void dlrm_flows_out(struct dlrm_flows *f, uint32_t slot, const struct dlrm_travel *travel);

#endif
