/*
 * The other workers of the job, as a server reports them: live workers, the reason of a wait, dead workers.
 */
#ifndef WORKER_JOB_PEERS_H
#define WORKER_JOB_PEERS_H

#include "worker/settings.h"
#include "worker/stop_signal.h"

/* Returns when no worker of the job is live or expected any more (this one has left), on a stop, or after
 * --finish-timeout, which a log line then says. */
void job_peers_wait(const struct settings *s, const struct stop_signal *stop);

#define JOB_PEERS_WHY_MAX 320u
#define JOB_PEERS_RANKS_MAX 1024u

/* The reason of this worker's wait, for people: the server's, or why there is none. */
void job_peers_why(const struct settings *s, char ret_why[JOB_PEERS_WHY_MAX]);

/* The ranks that have been logged as dead; zeroed by the caller. */
struct job_peers_dead {
    bool is_logged[JOB_PEERS_RANKS_MAX];
};

/* A line of the log for each other worker that has been declared dead or did not come, once. */
void job_peers_log_dead(const struct settings *s, struct job_peers_dead *dead);

#endif
