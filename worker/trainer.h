/*
 * The training run of one worker: epochs of steps, validation, early stop, leaving the job.
 *
 * A step: next batch -> pull its rows and the dense arrays at its clock -> forward and backward
 * -> push the gradients and tick; as many of them at a time as the job's bound and --ahead allow
 * (pipeline.h). On a device with memory of its own up to three steps are under way: one is copied in while another one
 * computes and a third is copied out. Clocks, bounds and push numbers are
 * the servers' business.
 */
#ifndef WORKER_TRAINER_H
#define WORKER_TRAINER_H

#include "worker/kept_model.h"
#include "worker/model_tables.h"
#include "worker/pipeline.h"
#include "worker/progress.h"
#include "worker/report/training_report.h"
#include "worker/setup.h"
#include "worker/stop_signal.h"

struct trainer {
    const struct settings *s; /* borrowed, as all below */
    const struct setup *u;
    struct param_store *store;
    struct model_tables *tables;
    struct progress *progress;
    struct training_report *report; /* NULL: none is wanted */
    const struct stop_signal *stop;
    struct pipeline *pipeline; /* owned, while it runs */
    uint64_t clock;            /* steps finished, as the servers count them */
    uint32_t n_sets;  /* of the device, as many as there are permits: steps take them in turn */
    double meta_loss; /* of the step with --meta that has begun */
    uint64_t n_begun, n_ended;         /* by the device: what is between them is under way */
    uint64_t clocks[DLRM_BUFFER_SETS]; /* of those, by the device's buffers */
    struct step_buffers *keeps; /* the last one's, if its residuals are copied; or NULL */
    uint64_t steps_before;      /* that another process of this worker has made */
    uint64_t skip;              /* batches from here on that belong to those steps */
    struct data_loader_bad_rows bad_before; /* of earlier epochs */
    uint64_t n_rows; /* in a pass over the data, of all ranks; 0: not known */
    bool bad_row_logged;
    struct progress_state state;
    struct stage_times outside; /* what stages spent on validations */
    struct resume_point *mark;  /* borrowed from the tables: where the run stands */
    const char *stopped;        /* why the run ends early, or NULL */
    /* After a validation within the run that was the best so far (--early-stop-by); a failure ends the
     * run. NULL: nothing is to be done. */
    int (*on_best)(void *arg, const struct kept_model *kept, struct err *err);
    void *on_best_arg;
};

/* Trains; returns when all epochs are done, on a stop, or with a sentence. The store is
 * flushed. */
int trainer_run(struct trainer *t, struct err *err) MUST_CHECK;

/* Better than all validations within the run, after which it is asked. */
bool trainer_is_best(const struct trainer *t, const struct metrics_result *result);

/* What is written of a model that is kept (kept_model.h). */
struct kept_model trainer_kept(const struct trainer *t, const struct metrics_result *result);

#endif
