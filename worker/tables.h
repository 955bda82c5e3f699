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
 * A dense table's rows are blocks; where an array does not fill its last block, its values pass
 * through a padded copy.
 */
#ifndef WORKER_TABLES_H
#define WORKER_TABLES_H

#include "worker/model/dlrm.h"
#include "worker/settings.h"
#include "worker/store.h"

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

/* Asks for the batch's unique rows and the model's arrays at `clock`, and waits. rows and wide
 * (tables_rows()) then hold the answers. */
int tables_pull(struct tables *t, const struct batch *batch, uint64_t clock,
                enum tables_want want, struct err *err) MUST_CHECK;

/* Pushes the gradients of the last backward, and ticks. */
int tables_push(struct tables *t, const struct batch *batch, uint64_t clock, struct err *err)
    MUST_CHECK;

/* The clean end of a run: what must outlive it beside the tables is written. NULL is fine. */
int tables_end(struct tables *t, struct err *err) MUST_CHECK;

/* [n_unique][dim] and [n_unique] (NULL without --wide): pulled weights, and where backward
 * writes. Good until the next pull. */
const float *tables_rows(const struct tables *t);
const float *tables_wide(const struct tables *t);
float *tables_row_grads(struct tables *t);
float *tables_wide_grads(struct tables *t);

/* Means and deviations: [n_numeric] each. Stored by rank 0, read by eval and predict. */
int tables_store_moments(struct tables *t, const float *mean, const float *std, struct err *err)
    MUST_CHECK;
int tables_load_moments(struct tables *t, float *ret_mean, float *ret_std, struct err *err)
    MUST_CHECK;

/* Early stop: rank 0 says after which clock everybody ends, and each sees it with its next pull. Told before rank 0 ticks
 * past that clock, all workers of a lock-step job end at the same step. */
int tables_tell_stop(struct tables *t, uint64_t clock, struct err *err) MUST_CHECK;
bool tables_stopped(const struct tables *t, uint64_t clock);

#endif
