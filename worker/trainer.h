/*
 * The training run of one worker: epochs of steps, validation, early stop, goodbye.
 *
 * A step: next batch -> pull its rows and the dense arrays at its clock -> forward and backward
 * -> push the gradients and tick; as many of them at a time as the job's bound and --ahead allow
 * (pipeline.h). On a device with memory of its own up to three steps are begun at a time, where they are
 * there: one is copied in while another one computes and a third is copied out. What the servers enforce (clocks, bounds, numbers) is not repeated here.
 */
#ifndef WORKER_TRAINER_H
#define WORKER_TRAINER_H

#include "worker/pipeline.h"
#include "worker/progress.h"
#include "worker/setup.h"
#include "worker/stop.h"
#include "worker/tables.h"

struct trainer {
    const struct settings *s; /* borrowed, as all below */
    const struct setup *u;
    struct store *store;
    struct tables *tables;
    struct progress *progress;
    const struct stop *stop;
    struct pipeline *pipeline; /* owned, while it runs */
    uint64_t clock;            /* steps finished, as the servers count them */
    uint32_t n_slots; /* of the device, as many as there are permits: steps take them in turn */
    uint64_t n_begun, n_ended;   /* by the device: what is between them is under way */
    uint64_t clocks[DLRM_SLOTS]; /* of those, by the device's slot */
    struct slot *keeps;          /* the last one's, if what is owed after it is kept; or NULL */
    uint64_t steps_before;       /* that another process of this worker has made */
    uint64_t skip;               /* batches from here on that belong to those steps */
    struct feed_bad_rows bad_before; /* of earlier epochs */
    bool told_bad_row;
    struct progress_state state;
    struct stages outside; /* what stages spent on validations */
    struct bookmark *mark; /* borrowed from the tables: where the run stands */
    const char *stopped;   /* why the run ends early, or NULL */
};

/* Trains; returns when all epochs are done, on a stop, or with a sentence. The store is
 * flushed. */
int trainer_run(struct trainer *t, struct err *err) MUST_CHECK;

#endif
