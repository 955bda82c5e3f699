/*
 * The other workers of the job, as a server tells of them: who still takes part, what is waited for, who is
 * gone.
 */
#ifndef WORKER_OTHERS_H
#define WORKER_OTHERS_H

#include "worker/settings.h"
#include "worker/stop.h"

/* Returns when no worker of the job is live or expected any more (this one has left), on a stop, or after
 * --finish-timeout, which a log line then says. */
void others_wait(const struct settings *s, const struct stop *stop);

#define OTHERS_WHY_MAX 320u
#define OTHERS_RANKS_MAX 1024u

/* What this worker waits for, for people: the server's reason, or why there is none. */
void others_why(const struct settings *s, char ret_why[OTHERS_WHY_MAX]);

/* Who has been told of; zeroed by the caller. */
struct others_gone {
    bool told[OTHERS_RANKS_MAX];
};

/* A line of the log for each other worker that has been declared dead or did not come, once. */
void others_tell_gone(const struct settings *s, struct others_gone *gone);

#endif
