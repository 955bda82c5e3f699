/*
 * Dense tables that are pushed and pulled every so many steps, each with a period of its own. Between two pushes the
 * worker makes its own steps on a copy, or adds gradients up (worker/cache/local_tensor.h).
 *
 *     push         of a table whose period ends with this step's clock: what the servers lack; of the others nothing
 *     pull_start   asks for tables that were pushed since they were last asked for
 *     pull_wait    the others are read here
 *     leave        pushes what is left, unless drop_unpushed() came first; in lock step as a step of its own, that
 *                  weighs as the one before it and is there even if nothing is left: the clock is then batches + 1
 *
 * A period of P ends with the steps of clock c, (c + phase) % P == P - 1: in lock step of all workers together. The
 * phase is 0, or with `rotates` such that tables of one period share its steps evenly, by their floats. Dense tables
 * that only add pass, and so do embedding rows without a period of their own. Pulls for validation bring the servers'
 * tables.
 *
 * Rows of an embedding table with a period (worker/cache/period_rows.h) are pulled when one of its steps asks for them
 * first, with phase 0, and their gradients add up until it ends. A pull that begins before the push that ends a period,
 * of a worker that is ahead, still reads rows of that period.
 *
 * The server's optimizer of a table with a period is that of its specification with LOCAL_TENSOR_SUM. With
 * LOCAL_TENSOR_STEPS it is momentum SGD, and the worker makes the steps of the other. A worker that was declared dead
 * (resume()) drops what the servers lack and its optimizer's state.
 *
 * With freeze_at, in lock step, the first push of a table at or behind that clock has the second moment of Adam or
 * LAMB, too, and of LAMB the coefficient of its steps. Their mean over workers stays in a table "JOB/variance.NAME",
 * which the next pull brings, and the first pull of a worker that comes later, or of a later run.
 *
 * With an adaptive weight the mean of the squares of the workers' differences, of all tables together, goes through a
 * table "JOB/merge" of one float, with the differences. The servers' tables, which validations and checkpoints have,
 * lack what workers add to the last merge until their next push, and so for good what would have been added to a job's
 * last one: leave() pushes a worker's own steps alone.
 */
#ifndef WORKER_PARAM_STORE_PERIODIC_H
#define WORKER_PARAM_STORE_PERIODIC_H

#include "worker/cache/local_tensor.h"
#include "worker/param_store.h"

struct param_store_periodic_options {
    enum local_tensor_rule rule;
    float slow_lr, slow_momentum; /* of LOCAL_TENSOR_STEPS, on the servers */
    bool lock_step;               /* dense tables are */
    bool rotates;
    /* In lock step, of tables of one period that do not rotate; more than 1: the number of workers, whose differences
     * are merged with an adaptive weight (worker/cache/local_tensor.h). */
    uint32_t merges_adaptively;
    uint64_t freeze_at; /* 0: never; else each periodic table's optimizer is Adam or LAMB */
    /* Of the table "JOB/NAME", at least 1; 1 is none with LOCAL_TENSOR_SUM. */
    uint32_t (*period_of)(const void *arg, const char *table);
    /* Likewise of embedding tables. NULL: all are 1. */
    uint32_t (*row_period_of)(const void *arg, const char *table);
    const void *arg;
};

/* True of a table that merges workers' own steps: a job without them has no use for its optimizer. */
bool param_store_periodic_merges(const struct table_spec *have);

/* Takes `inner`. */
struct param_store *
param_store_periodic_new(struct param_store *inner,
                         const struct param_store_periodic_options *options);

#endif
