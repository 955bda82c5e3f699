/*
 * A trial of `psworker tune`: a choice of settings, what came of it on each rung, and the process that trains it,
 * `psworker train` with these settings. A process of its own, so that whatever happens to it ends one trial alone.
 */
#ifndef WORKER_TUNE_TRIAL_H
#define WORKER_TUNE_TRIAL_H

#include <limits.h>
#include <sys/types.h>

#include "worker/tune/halving.h"
#include "worker/tune/search_space.h"

#define TRIAL_WHY_MAX 512u

struct trial_result {
    double auc, logloss, seconds; /* of training */
};

struct trial {
    char values[SEARCH_SPACE_MAX][SEARCH_SPACE_TEXT_MAX]; /* in the order of the space */
    uint32_t n_rungs;                                     /* that it has ended well */
    struct trial_result results[HALVING_RUNGS_MAX];
    char why[TRIAL_WHY_MAX]; /* it failed; "": not */
};

struct trial_process {
    uint32_t trial;      /* its number; that of the space's draw */
    uint32_t slot;       /* among those that run at once */
    pid_t pid;           /* 0: none */
    int fd;              /* of the process: readable when it has ended */
    char base[PATH_MAX]; /* of its files: .conf, .json, .log */
};

/* s: of the trial; its member json is not used. Files go into dir. Trials of different slots take different GPUs, if
 * there are several. -errno with a sentence. */
int trial_process_start(const struct settings *s, const char *dir, uint32_t trial,
                        uint32_t slot, struct trial_process *ret, struct err *err) MUST_CHECK;
void trial_process_stop(const struct trial_process *p);

/* At the start of a training run: if it is a trial, it ends with its search, also with one that is killed. */
void trial_process_follow(void);

/* Behind its end: *ret, or a sentence why it failed, "" on success; and its files go. by_logloss: no AUC is needed. */
void trial_process_end(struct trial_process *p, bool by_logloss, struct trial_result *ret,
                       char why[static TRIAL_WHY_MAX]);

#endif
