/*
 * The output of a run: a bar on a terminal, a line every few seconds elsewhere, and one JSON
 * object a line in a file (--json). The same figures are /metrics of --metrics-listen, and what servers get of the
 * training (settings.report): with each line, and every PROGRESS_REPORT_MS if lines are rarer. It measures nothing but
 * time.
 */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include "worker/client/ps.h"
#include "worker/data/data_loader_options.h"
#include "worker/metrics.h"
#include "worker/model/dlrm.h"
#include "worker/settings.h"
#include "worker/stage_times.h"

#define PROGRESS_REPORT_MS 2000u

struct progress;

/* A snapshot of the trainer's counters. */
struct progress_state {
    uint32_t epoch, n_epochs;   /* epoch from 0 */
    uint64_t step;              /* of this worker */
    uint64_t clock;             /* steps finished, as the servers count them */
    uint64_t samples;           /* trained on so far, all epochs */
    uint64_t samples_before;    /* by earlier processes of this rank, as full batches count */
    uint64_t samples_expected;  /* of all epochs; 0: not known */
    double loss_sum;            /* of the batches' mean losses since the last report, */
    uint64_t loss_n;            /* and their number */
    double unreported_loss_sum; /* the same since the last report to the servers */
    uint64_t unreported_loss_n;
    double epoch_loss_sum; /* of the epoch with the last step */
    uint64_t epoch_loss_n;
    uint32_t loss_epoch; /* which one that is */
    struct ps_stats store;
    struct dlrm_row_counts device_rows;
    struct stage_times stages; /* since the start, validations left out */
    struct data_loader_bad_rows bad;
    bool validates;          /* some worker of the job does, if not this one */
    uint32_t workers_lost;   /* others, that never came or did not come back */
    uint64_t rows_untrained; /* of those, and of this rank's; an estimate */
    bool is_untrained_known;
};

/* -errno and a sentence if the JSON file cannot be written. *s stays until progress_close(). */
int progress_open(const struct settings *s, struct progress **ret, struct err *err) MUST_CHECK;

/* /metrics from here on, if --metrics-listen names an address; -errno and a sentence if it cannot be had. */
int progress_listen(struct progress *p, const struct settings *s, struct err *err) MUST_CHECK;

/* Counts a batch's mean loss, of state->epoch. */
void progress_loss(struct progress_state *state, double loss);

/* A line or a redrawn bar, if one is due; then the loss sums start anew. */
void progress_step(struct progress *p, struct progress_state *state);

/* The model of this validation is kept (--keep best): later reports say so. epoch from 0. */
void progress_kept(struct progress *p, uint32_t epoch, uint64_t step);

void progress_validation(struct progress *p, const struct progress_state *state,
                         const struct metrics_result *result);

/* The servers get what they have not: before this worker leaves. */
void progress_report(struct progress *p, struct progress_state *state);

/* The servers get the validation that a worker makes when it has left; waits for their answer, for
 * PROGRESS_REPORT_MS at most. */
void progress_report_validation(struct progress *p, const struct progress_state *state,
                                const struct metrics_result *result);

/* The last line: valid may be NULL. `stopped`: why the run ended early, or NULL. */
void progress_result(struct progress *p, const struct progress_state *state,
                     const struct metrics_result *valid, const char *stopped);

/* The last line of a run that has failed, instead: why. NULL is fine. */
void progress_failure(struct progress *p, const char *sentence);

/* Training time so far, validation left out. */
void progress_pause(struct progress *p);
void progress_resume(struct progress *p);

/* So much of it until now. */
double progress_seconds(const struct progress *p);

/* -EIO and a sentence if not all of the JSON could be written. NULL is fine. */
int progress_close(struct progress *p, struct err *err) MUST_CHECK;

#endif
