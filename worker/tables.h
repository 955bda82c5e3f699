/*
 * The model's arrays as tables of a store: which table is which, what a batch asks for, what it
 * pushes.
 *
 *     JOB/emb       sparse, dim   embedding rows of all fields
 *     JOB/wide      sparse, 1     first-order weights (if --wide)
 *     JOB/TENSOR    dense         each array of the MLPs: JOB/bot.0.W ...
 *     JOB/moments   dense         means, then standard deviations of numeric columns (if
 *                                 standardised)
 *     JOB/control    dense, 3            a counter that grows when rank 0 stops early, and the last clock (if --early-stop)
 *
 * A dense table's rows are blocks; an array that does not fill its last block is padded to it in
 * the slots.
 *
 * One thread may pull into slots while another pushes others, where the store lets them overlap;
 * tables_use() and what the model does are the thread's that computes.
 */
#ifndef WORKER_TABLES_H
#define WORKER_TABLES_H

#include "worker/model/dlrm.h"
#include "worker/settings.h"
#include "worker/slot.h"
#include "worker/store.h"
#include "worker/wire.h"

struct tables;

/* Makes the tables in the store (train), or finds them there and holds them against the model
 * (eval, predict): the sentence then names the setting that differs. The model and the store
 * are borrowed. */
int tables_create(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                  struct store *store, struct tables **ret, struct err *err) MUST_CHECK;
int tables_find(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                struct store *store, struct tables **ret, struct err *err) MUST_CHECK;
/* Does the store hold tables of this job? */
bool tables_exist(const struct settings *s, struct store *store);

void tables_free(struct tables *t);

/* What a pull brings. A step's: dense tables only if those pulled before are no longer good
 * (wire.h). */
enum tables_want { TABLES_ROWS = 1, TABLES_DENSE = 2, TABLES_ALL = 3, TABLES_STEP = 7 };

/* Room for the model's arrays in an empty slot; deinit frees its arrays, and gives the model its
 * own ones back if it used the slot's. */
int tables_slot_init(struct tables *t, struct slot *slot, struct err *err) MUST_CHECK;
void tables_slot_deinit(struct tables *t, struct slot *slot);

/* Asks for the unique rows of the slot's batch and the model's arrays at the slot's clock, and
 * waits. Makes room for the gradients too. */
int tables_pull(struct tables *t, struct slot *slot, enum tables_want want, struct err *err)
    MUST_CHECK;

/* Tells the store that the slot's rows are wanted next (store.h, ahead); 0 at once where it does
 * not want to know. */
int tables_ahead(struct tables *t, struct slot *slot, struct err *err) MUST_CHECK;

/* The model's arrays are the slot's from here on; a slot that was pulled without them gets a copy
 * of those that the model has. The step to make of it, at once or behind those that are under way: a prediction, or
 * one whose gradients come as floats. */
struct dlrm_step tables_use(struct tables *t, struct slot *slot);

/* The same for a step of the training: its gradients leave the device as they travel, where it can do that (travel.h). */
int tables_begin(struct tables *t, struct slot *slot, struct dlrm_step *ret, struct err *err)
    MUST_CHECK;

/* Is what is owed after the slot's step, the last that has begun, to be kept on the host, to be written when it has been pushed?
 * Then it is, when the step has ended and before another one begins; what fails is a warning. */
bool tables_keeps(const struct tables *t, const struct slot *slot);
void tables_keep(struct tables *t, struct slot *slot);

/* Pushes the slot's gradients, and ticks. */
int tables_push(struct tables *t, struct slot *slot, struct err *err) MUST_CHECK;

/* How the tables travel, and where the run stands. */
struct wire *tables_wire(const struct tables *t);

/* The store's counters, with what only this side knows (wire.h). Any thread. */
void tables_stats(const struct tables *t, struct ps_stats *ret);

/* What was pulled and not computed is dropped: dense arrays may have been in it. */
void tables_restart(struct tables *t);

/* The end of a run, well or with an error: what must outlive it beside the tables is written. Needs
 * no server, but the device; the store is still open, and no step under way. NULL is fine. */
int tables_end(struct tables *t, struct err *err) MUST_CHECK;

/* Means and deviations: [n_numeric] each. Stored by rank 0, read by eval and predict. */
int tables_store_moments(struct tables *t, const float *mean, const float *std, struct err *err)
    MUST_CHECK;
int tables_load_moments(struct tables *t, float *ret_mean, float *ret_std, struct err *err)
    MUST_CHECK;

/* Early stop: rank 0 says after which clock everybody ends, and each sees it with its next pull. Told before rank 0 ticks
 * past that clock, all workers of a lock-step job end at the same step. */
int tables_tell_stop(struct tables *t, uint64_t clock, struct err *err) MUST_CHECK;
bool tables_stopped(const struct tables *t, const struct slot *slot);

#endif
