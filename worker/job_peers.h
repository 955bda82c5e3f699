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

/* Workers that never came, or were declared dead and did not come back: by rank, with the steps that they had
 * finished. */
struct job_peers_lost {
    uint32_t n;
    bool is_lost[JOB_PEERS_RANKS_MAX];
    uint64_t clock[JOB_PEERS_RANKS_MAX];
};

/* As all nodes that answer say, once they know that this worker has left. The rest is logged. */
void job_peers_find_lost(const struct settings *s, struct job_peers_lost *ret);

/* The reason of this worker's wait, for people: the server's, or why there is none. */
void job_peers_why(const struct settings *s, char ret_why[JOB_PEERS_WHY_MAX]);

/* The ranks that have been logged as dead; zeroed by the caller. */
struct job_peers_dead {
    bool is_logged[JOB_PEERS_RANKS_MAX];
};

/* A line of the log for each other worker that has been declared dead or did not come, once. */
void job_peers_log_dead(const struct settings *s, struct job_peers_dead *dead);

#endif
