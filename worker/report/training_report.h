/*
 * Collects what the page of a run shows (report_page.h), and writes it: --report. A run without it has NULL, with
 * which every function does nothing. What fails here is a warning: the training goes on, and its exit code stays.
 */
#ifndef WORKER_REPORT_TRAINING_REPORT_H
#define WORKER_REPORT_TRAINING_REPORT_H

#include "worker/evaluate.h"
#include "worker/progress.h"
#include "worker/setup.h"

struct training_report;

/* *ret is NULL unless there is a --report and this worker is rank 0. A sentence if its file cannot be made there; a
 * page of an earlier run stays until this one is written. */
int training_report_new(const struct settings *s, struct training_report **ret, struct err *err)
    MUST_CHECK;
void training_report_free(struct training_report *r);

/* A step has ended; then, where the run stands and how long it has trained. */
void training_report_loss(struct training_report *r, double loss);
void training_report_step(struct training_report *r, const struct progress_state *state,
                          double train_s);
void training_report_validation(struct training_report *r, const struct progress_state *state,
                                const struct metrics_result *result);

/* Of the last validation: it draws rows, and bins predictions. */
const struct evaluate_observer *training_report_observer(struct training_report *r);

struct training_report_end {
    const struct setup *setup;
    struct model_tables *tables;    /* as the last validation used them */
    const struct stop_signal *stop; /* ends the measuring of importance */
    struct progress_state *run;
    const struct metrics_result *result; /* of the last validation; NULL: there was none */
    const char *stopped, *failure; /* why the run ended early, and why it failed; or NULL */
    double train_s;
};

/* Measures the importance of columns, if there was a last validation, and writes the page. */
void training_report_write(struct training_report *r, const struct training_report_end *end);

#endif
