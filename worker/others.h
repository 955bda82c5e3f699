/*
 * Waiting, at the end of a run, for the other workers of the job: asks the servers who still
 * takes part.
 */
#ifndef WORKER_OTHERS_H
#define WORKER_OTHERS_H

#include "worker/settings.h"
#include "worker/stop.h"

/* Until no worker of the job is live or expected (other than this one, which has left), until
 * --finish-timeout, or a stop. 0 also when the time is over: a log line then says who is
 * missing. */
int others_wait(const struct settings *s, const char *token, const struct stop *stop,
                struct err *err) MUST_CHECK;

#endif
