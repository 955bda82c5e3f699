/*
 * The other workers of the job, as a server reports them: live workers, the reason of a wait, dead workers.
 */
#ifndef WORKER_JOB_PEERS_H
#define WORKER_JOB_PEERS_H

#include "worker/param_store.h"
#include "worker/settings.h"
#include "worker/stop_signal.h"

#define JOB_PEERS_WHY_MAX 320u
#define JOB_PEERS_RANKS_MAX 1024u

/* Who asks; all is borrowed. The servers that are asked: the psd that the store knows to have taken over from another
 * one, then those of --servers. */
struct job_peers {
    const struct settings *settings;
    const struct param_store *store; /* NULL: --servers alone */
};

/* How the other workers ended, by rank. */
struct job_peers_ends {
    uint32_t n_lost;
    bool is_lost[JOB_PEERS_RANKS_MAX];   /* never came, or declared dead and not back */
    bool has_left[JOB_PEERS_RANKS_MAX];  /* said goodbye */
    uint64_t clock[JOB_PEERS_RANKS_MAX]; /* of both: the steps that they had finished */
    uint64_t skipped
        [JOB_PEERS_RANKS_MAX]; /* of these: that the others went on for while the rank was away */
    bool is_known; /* servers have answered, and all whom this worker waited for have ended */
    char why_unknown[240]; /* else */
    char at_work[160];     /* "" or the first that is live, suspected or expected */
};

/* As all nodes that answer say, once they know that this worker has left. Waits until no other worker is live,
 * suspected or expected: for --finish-timeout at most, for silence_max_ms at most while no server answers, and not
 * after a stop. Log lines name the worker. silence_max_ms 0: it waits for no other worker and no server. */
void job_peers_find_ends(const struct job_peers *p, const struct stop_signal *stop,
                         uint64_t silence_max_ms, struct job_peers_ends *ret);

/* The reason of this worker's wait, for people: the server's, or why there is none. */
void job_peers_why(const struct job_peers *p, char ret_why[JOB_PEERS_WHY_MAX]);

/* The job's clock: the steps that all its workers have finished, as the first server of --servers that answers has it.
 * -ENOENT: it knows no such job. */
int job_peers_clock(const struct settings *s, uint32_t timeout_ms, uint64_t *ret,
                    struct err *err) MUST_CHECK;

/* The ranks that have been logged as dead; zeroed by the caller. */
struct job_peers_dead {
    bool is_logged[JOB_PEERS_RANKS_MAX];
};

/* A line of the log for each other worker that has been declared dead or did not come, once. */
void job_peers_log_dead(const struct job_peers *p, struct job_peers_dead *dead);

#endif
