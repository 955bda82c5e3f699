/*
 * A search (tune.h), and what it says: a line for each trial, the table at its end, what mattered, a picture, and the
 * best command.
 */
#ifndef WORKER_TUNE_TUNE_REPORT_H
#define WORKER_TUNE_TUNE_REPORT_H

#include <stdio.h>

#include "worker/stop_signal.h"
#include "worker/tune/trial.h"

#define TUNE_REPORT_BINS 5u

/* What the search has, and how far it is. */
struct tune {
    const struct settings *given; /* borrowed */
    char *const *words;           /* borrowed: the command line behind "tune"; ends with NULL */
    const struct stop_signal *stop;
    struct settings *base; /* owned: of every trial, but for what is searched */
    struct search_space space;
    struct halving plan;
    uint64_t n_rows;       /* to train on, of an epoch */
    uint32_t n;            /* trials */
    struct trial *trials;  /* owned */
    uint32_t rung;         /* that is under way, or was last */
    uint32_t order[10000]; /* the trials of the rung */
    uint32_t n_order, n_failed;
    struct trial_process *processes; /* owned; base->parallel of them, pid 0: free */
    uint32_t n_running, n_ended;     /* on all rungs */
    char dir[512];                   /* of its files; "": none yet */
    char salt[16];                   /* of the jobs' names */
    uint32_t n_jobs_left;            /* that could not be dropped */
    struct err why_left;
    FILE *json; /* NULL: none */
    bool is_stopped;
};

/* Means of the loss on the first rung, by values of one setting: of each choice, or of ranges of as many trials. */
struct tune_report_setting {
    uint32_t setting; /* its number in the space */
    double spread;    /* between the best and the worst bin; NaN: there are no two */
};

/* By spread, the greatest first. ret: [t->space.n] */
void tune_report_settings(const struct tune *t, struct tune_report_setting *ret);

/* The smaller the better: 1 - AUC, or the log-loss with --early-stop-by logloss. */
double tune_report_loss(const struct tune *t, const struct trial_result *result);

/* The best of those that came furthest; t->n: none has ended well. */
uint32_t tune_report_best(const struct tune *t);

/* `psworker train` with the words of the search and the settings of the trial, for a shell. The caller's to free. */
char *tune_report_command(const struct tune *t, uint32_t trial);

/* A trial has ended a rung, or failed. */
void tune_report_trial(const struct tune *t, uint32_t trial);

/* Table, what mattered, command; to stdout, or as the last line of the JSON. */
void tune_report_end(const struct tune *t);

/* --svg */
int tune_report_write_svg(const struct tune *t, struct err *err) MUST_CHECK;

#endif
