/*
 * Waiting, at the end of a run, for the other workers of the job: asks the servers who still
 * takes part.
 */
#ifndef WORKER_OTHERS_H
#define WORKER_OTHERS_H

#include "worker/settings.h"
#include "worker/stop.h"

/* Returns when no worker of the job is live or expected any more (this one has left), on a stop, or after
 * --finish-timeout, which a log line then says. */
void others_wait(const struct settings *s, const char *token, const struct stop *stop);

#endif
