/*
 * How a run's gradients leave a device that has memory of its own: encoded (dlrm_travel.h). For each table that is pushed, what
 * lossy codecs owe to its rows is in the device's memory, and here is the index of it: which key has which row
 * (client/owed.h). The device thus writes what the encoder would, and the pushes are the same, byte for byte.
 *
 *     table    1:1    flow of the model    1:1    section of a push
 *
 *     a step   begins    travel_begin(): which rows go, what is owed to them, and where its bytes are to be
 *              is done   the bytes are there
 *              is pushed travel_sections(): the sections with these bytes
 *
 * Steps take what is owed in the order in which they begin, and several may be under way: each has arrays of its own
 * (struct travel_step, one for each slot). A step that has begun and is not pushed takes with it what it carried, as a push does
 * that is refused: steps that a device drops as their worker was declared dead, or after an error.
 *
 * What is owed comes from the encoder's residuals before the first step, and goes there, as a copy, to be written
 * (state.h); in between the encoder has none of these tables.
 *
 * Threads: all is the thread's that computes; but travel_sections() and travel_swap() the one's that pushes, and
 * travel_stats() anybody's.
 */
#ifndef WORKER_TRAVEL_H
#define WORKER_TRAVEL_H

#include "worker/client/encode.h"
#include "worker/client/owed.h"
#include "worker/client/ps_types.h"
#include "worker/model/dlrm.h"

struct travel;

/* A table that is pushed with every step, and the flow of its gradients. */
struct travel_table {
    uint32_t flow;
    uint32_t table;    /* the encoder's number */
    uint32_t n_blocks; /* of a dense one; 0: it is sparse */
    bool may_owe;      /* its codec may be one with feedback */
};

/* One step's rows and their bytes. Zeroed: none. */
struct travel_step {
    uint32_t n;
    struct travel_part *parts; /* owned, n: by table */
    struct dlrm_travel *flows; /* owned: the model's, for dlrm_step.travel */
    uint32_t *room; /* owned, dlrm_host_alloc()'s: all that the device reads and writes */
    size_t room_bytes;
};

/* What is owed, on the host. Zeroed: none. */
struct travel_copy {
    uint32_t n;
    struct residual *residuals; /* owned, n: by table */
};

/* tables, n of them, in the order of a push's sections, are copied; the model, which encodes, and the encoder, which has these
 * tables and what is owed to them, are borrowed. Reserves the device's memory. -ENOMEM: it has none left, or a bound is
 * missing; or the device's errors: then none of it is taken. */
int travel_new(struct dlrm *model, struct encoder *encoder, const struct travel_table *tables,
               uint32_t n, struct travel **ret, struct err *err) MUST_CHECK;
void travel_free(struct travel *t);

/* Before the first step: what the encoder's residuals hold moves to the device; then nothing happens. On failure they hold it still. */
int travel_load(struct travel *t, struct err *err) MUST_CHECK;
bool travel_is_loaded(const struct travel *t);

/* The step's flows; sections, one for each table, say with what codec its gradients go, and to which keys, which stay borrowed
 * as long as the step's. -ENOMEM: nothing has changed. */
int travel_begin(struct travel *t, struct travel_step *step,
                 const struct ps_push_section *sections, struct err *err) MUST_CHECK;
void travel_step_deinit(struct travel_step *step, struct dlrm *model);

/* The same sections, as the device has encoded them. */
void travel_sections(const struct travel_step *step, struct ps_push_section *sections);

/* What is owed after the last step that has begun; none is under way. -ENOMEM, or the device's errors: *ret is empty, and err says
 * what cannot be had. */
int travel_copy(struct travel *t, struct travel_copy *ret, struct err *err) MUST_CHECK;
void travel_copy_deinit(struct travel_copy *copy);

/* Puts the copy in the place of the encoder's residuals, and what is there into the copy. */
void travel_swap(struct travel *t, struct travel_copy *copy);

/* Adds rows and bytes that are owed, the device's included, and rows that were settled. */
void travel_stats(const struct travel *t, struct ps_stats *stats);

#endif
