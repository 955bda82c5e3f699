/*
 * Who takes part: jobs, their workers, clocks, leases, incarnations, sequence numbers. Pure bookkeeping on
 * numbers; time is an argument.
 *
 *     worker     counted in min clock   leaves it by
 *     EXPECTED   yes, with clock 0      joining; the job's join deadline -> LOST
 *     LIVE       yes                    leave -> LEFT; lease over -> DEAD
 *     LEFT       no                     a join by a new incarnation -> LIVE
 *     DEAD,LOST  no                     a join by a new incarnation -> LIVE
 *
 * A worker that comes back is a new incarnation (a greater number) and starts at the min clock or its own clock, whichever is
 * greater. What an older incarnation still sends is fenced. The same incarnation joining again is a reconnect while it is LIVE;
 * after DEAD it is refused with PS_EFENCED. A job whose workers have all gone (left, dead or lost) starts afresh, with
 * new settings, at the next join.
 */
#ifndef SERVER_CORE_ROSTER_H
#define SERVER_CORE_ROSTER_H

#include <stdbool.h>

#include "common/histogram.h"
#include "common/status.h"
#include "proto/spec.h"

#define ROSTER_N_JOBS_MAX 64u
#define ROSTER_N_WORKERS_MAX 1024u /* of one job */

struct roster;
struct job;

enum worker_state { WORKER_EXPECTED, WORKER_LIVE, WORKER_LEFT, WORKER_DEAD, WORKER_LOST };

struct worker {
    struct job *job; /* borrowed */
    uint32_t rank;
    enum worker_state state;
    char name[64];
    uint64_t incarnation;
    uint64_t clock;        /* steps finished */
    uint64_t last_seq;     /* of the last push judged */
    uint64_t last_seen_ms;
};

struct job {
    char name[SPEC_NAME_MAX];
    enum spec_mode mode;  /* async, ssp, bsp */
    uint32_t bound;
    uint32_t n_workers;
    struct worker *workers; /* owned, n_workers, by rank */
    uint64_t started_ms, join_deadline_ms;
    uint64_t n_fenced, n_deaths, staleness_violations;
    struct histogram staleness; /* clocks that answered pulls were ahead of min clock; owned */
};

/* What a worker asks for when it joins. */
struct roster_join {
    const char *job;
    uint32_t rank, n_workers;
    uint64_t incarnation;
    enum spec_mode mode;
    uint32_t bound;
    uint64_t clock, last_acked;
    const char *name;
};

struct roster *roster_new(uint32_t lease_ms, uint32_t join_ms);
void roster_free(struct roster *r);

/* *ret_worker is borrowed and stays at its address for the roster's life (a job that starts afresh keeps no old
 * worker: connections hold {job name, rank, incarnation} and ask roster_find() for each message).
 * PS_EJOB: the job runs with other settings (err names which); PS_EFENCED; -ENOSPC; -EINVAL with a sentence. */
int roster_join(struct roster *r, const struct roster_join *join, uint64_t now_ms, struct worker **ret_worker,
                struct err *err) MUST_CHECK;

/* The worker if this incarnation of it is the one that counts and is LIVE; its lease is renewed. PS_EFENCED (counted) when it
 * was declared dead, left, or has a newer incarnation; PS_ENOJOIN when there is no such job or rank. */
int roster_find(struct roster *r, const char *job, uint32_t rank, uint64_t incarnation, uint64_t now_ms,
                struct worker **ret_worker) MUST_CHECK;

void roster_leave(struct roster *r, struct worker *worker);

/* The slowest counted worker's clock; of a job with nobody counted, the greatest clock that any had. */
uint64_t job_min_clock(const struct job *job);

/* Has every counted worker finished step `clock`? */
bool job_all_ticked(const struct job *job, uint64_t clock);

/* Ends leases and join deadlines that are over. True if a worker stopped counting. */
bool roster_advance(struct roster *r, uint64_t now_ms);

uint32_t roster_n_jobs(const struct roster *r);
struct job *roster_job(struct roster *r, uint32_t i);
const char *worker_state_name(enum worker_state state);

#endif
