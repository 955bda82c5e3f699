/*
 * A model's tables from inside: what setting them up and pulling them (tables.c) and pushing them (tables_push.c) share.
 */
#ifndef WORKER_TABLES_STATE_H
#define WORKER_TABLES_STATE_H

#include "worker/settings.h"
#include "worker/slot.h"
#include "worker/store.h"
#include "worker/travel.h"
#include "worker/wire.h"

#define TABLES_DENSE_MAX (DLRM_TENSORS_MAX + 2)

/* A dense array and the table that holds it. */
struct dense {
    struct table_spec spec;
    uint32_t id, n_blocks;
    uint64_t *keys;                   /* owned: 0 .. n_blocks - 1 */
    const struct dlrm_tensor *tensor; /* borrowed; NULL for moments and control */
    float *values;                    /* moments and control: owned, padded */
};

struct tables {
    const struct settings *s;
    struct slot_shape shape; /* of every slot; its model is borrowed */
    struct store *store;     /* borrowed */
    struct wire *wire;       /* owned: how all this travels */
    struct travel *travel;   /* owned: what leaves the device encoded; NULL: floats do */
    uint32_t n_numeric;
    uint32_t emb, wide;
    struct dense dense[TABLES_DENSE_MAX];
    uint32_t n_dense; /* tensors of the model */
    struct dense moments, control;
    bool has_moments, has_control;
    float control_start;             /* what the stop counter was when this run began */
    struct ps_pull_section ahead[2]; /* the store's until the next pull */
};

/* The way in which gradients leave the model: t->travel, where its device can encode and has room for what is then
 * owed. The wire has been made. */
int tables_push_open(struct tables *t, struct err *err) MUST_CHECK;

#endif
