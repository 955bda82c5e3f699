/*
 * `psworker tune`: tries settings. Trial 1 has the settings as given, the others draw from a search space by the seed;
 * successive halving gives most of the work to those that are good. A trial is a training run of one worker with a job
 * of its own, in another process, on a shared cache of parsed rows; the job's tables are dropped when it ends. All are
 * judged by the end of the training rows, which none trains on, and never by --valid.
 */
#ifndef WORKER_TUNE_TUNE_H
#define WORKER_TUNE_TUNE_H

#include "worker/settings.h"
#include "worker/stop_signal.h"

/* The whole search, and what it says. PS_ESETTING: the search space or the data make no sense. It fails if no trial
 * has ended well. */
int tune_run(const struct settings *s, char *const *words, const struct stop_signal *stop,
             struct err *err) MUST_CHECK;

/* --check: the settings, the search space and the data, as far as they can be wrong before a server is asked. */
int tune_check(const struct settings *s, struct err *err) MUST_CHECK;

#endif
