/*
 * Who takes part: jobs, their workers, clocks, leases, incarnations, sequence numbers. Pure
 * bookkeeping on numbers; time is an argument.
 *
 *     worker     counted in min clock   leaves it by
 *     EXPECTED   yes, with clock 0      joining; the job's join deadline -> LOST
 *     LIVE       yes                    leave -> LEFT; lease over -> DEAD
 *     LEFT       no                     a join by a new incarnation, or by its own that does not
 *                                       know all of its pushes to be judged -> LIVE
 *     DEAD,LOST  no                     a join by a new incarnation -> LIVE
 *
 * A worker that comes back is a new incarnation (a greater number) and starts at the min clock
 * or its own clock, whichever is greater. What an older incarnation still sends is fenced. The
 * same incarnation joining again is a reconnect while it is LIVE; after DEAD it is refused with
 * PS_EFENCED. It brings its clock and its last acknowledged push: where the shard has lost some of
 * them (a log that is not synced before the answer), others would wait for a step that is over. A job whose workers have all gone (left, dead or lost) starts afresh, with new
 * settings, at the next join of a worker that has finished no step; but what was fenced stays
 * fenced. One that has finished some goes on with the run that it was part of.
 *
 * Leases and join deadlines end in roster_advance() only: a message that is there before it
 * counts.
 *
 * This is the interface; roster_*.c are behind it.
 */
#ifndef SERVER_CORE_ROSTER_H
#define SERVER_CORE_ROSTER_H

#include <stdbool.h>

#include "common/histogram.h"
#include "common/status.h"
#include "proto/spec.h"

#define ROSTER_N_JOBS_MAX 64u
#define ROSTER_N_WORKERS_MAX 1024u /* of one job */
/* No job gets there; so clock + bound cannot wrap. */
#define ROSTER_CLOCK_END (UINT64_C(1) << 62)

struct roster;
struct job;
struct shard_journal;

enum worker_state { WORKER_EXPECTED, WORKER_LIVE, WORKER_LEFT, WORKER_DEAD, WORKER_LOST };

struct worker {
    struct job *job; /* borrowed */
    uint32_t rank;
    enum worker_state state;
    char name[64];
    uint64_t incarnation;
    uint64_t fenced_below; /* a smaller incarnation is refused */
    uint64_t clock;        /* steps finished */
    uint64_t last_seq;     /* of the last push judged */
    uint64_t refused_seq;  /* of the last push refused, or 0: this incarnation's */
    int refused_status;
    uint64_t last_seen_ms;
    /* Its next push came and was not judged (-ENOMEM, -EAGAIN, -EBUSY, PS_ESEQ): until it comes again nothing is true that
     * was said behind it. */
    bool is_behind;
    /* Of its last join, in this process: what a connection that joined before still brings says nothing of where it
     * stands now. */
    uint64_t join_number;
    bool resumed; /* its last join was a reconnect of the same incarnation */
    uint64_t
        n_lost; /* of its last join: pushes that had been acknowledged to it and are not here */
};

struct job {
    char name[SPEC_NAME_MAX];
    uint64_t run;        /* a number of its own for each time that a job started (afresh) */
    enum spec_mode mode; /* async, ssp, bsp */
    uint32_t bound;
    uint32_t n_workers;
    struct worker *workers; /* owned, n_workers, by rank */
    /* Pushes of clocks below this have changed rows; of later ones, none has. */
    uint64_t reached;
    uint64_t started_ms, join_deadline_ms;
    uint64_t n_fenced, n_deaths, staleness_violations;
    uint64_t n_lost;            /* the sum of its workers' */
    struct histogram staleness; /* clocks that answered pulls were ahead of min clock; owned */
};

/* What a worker asks for when it joins. */
struct roster_join {
    const char *job;
    uint32_t rank, n_workers;
    uint64_t incarnation;
    enum spec_mode mode;
    uint32_t bound; /* of SPEC_MODE_SSP; else it says nothing */
    uint64_t clock; /* steps that it has finished */
    /* Its last push that this shard acknowledged, maybe before a restart: the next one is the
     * one behind it. */
    uint64_t last_acked;
    const char *name;
};

struct roster *roster_new(uint32_t lease_ms, uint32_t join_ms);
void roster_free(struct roster *r);

/* *ret_worker is borrowed and stays at its address for the roster's life (a job that starts
 * afresh keeps no old worker: connections hold {job name, rank, incarnation} and ask
 * roster_find() for each message). -EBUSY: another process (by its name) is this rank and was heard of within half a
 * lease; PS_EJOB: the job runs with other settings (err names which);
 * PS_EFENCED; -ENOSPC (ROSTER_N_JOBS_MAX jobs have workers); -ENOMEM; -EAGAIN (the journal is full); -EINVAL with a sentence.
 * A job of which nobody is left gives its place to a new one when places run out. */
int roster_join(struct roster *r, const struct roster_join *join, uint64_t now_ms,
                struct worker **ret_worker, struct err *err) MUST_CHECK;

/* The worker if this incarnation of it is the one that counts and is LIVE; its lease is
 * renewed. PS_EFENCED (counted) when it was declared dead, left, or has a newer incarnation;
 * PS_ENOJOIN when there is no such job or rank. */
int roster_find(struct roster *r, const char *job, uint32_t rank, uint64_t incarnation,
                uint64_t now_ms, struct worker **ret_worker) MUST_CHECK;

/* The smallest incarnation of this rank that joins as a new one: what to tell who was refused
 * with PS_EFENCED. Its own clock may be behind that of whoever had the rank before. */
uint64_t roster_fence(const struct roster *r, const char *job, uint32_t rank);

/* A pull says that its worker has finished `clock` steps (its own clock, less the steps that are
 * under way): one that came back and was moved up by another shard is moved up here too, or it would wait for itself. True if it
 * moved; then shard_advance(). A clock past ROSTER_CLOCK_END is ignored, and one of a worker that is behind: it counts on a
 * push that is still to come. */
bool roster_reach(struct worker *worker, uint64_t clock);

void roster_leave(struct roster *r, struct worker *worker);

/* Is this worker counted: expected, or live? */
bool job_counts(const struct worker *w);

/* The slowest counted worker's clock; of a job with nobody counted, the greatest clock that any
 * had. */
uint64_t job_min_clock(const struct job *job);

/* Has every counted worker finished step `clock`? */
bool job_all_ticked(const struct job *job, uint64_t clock);

/* Is anybody counted? */
bool job_is_alive(const struct job *job);

/* Ends leases (silent for longer than lease_ms) and join deadlines that are over. True if a
 * worker stopped counting. */
bool roster_advance(struct roster *r, uint64_t now_ms);

/* How many workers have left, died or been lost since the start: whoever waits for a min clock
 * asks again when this has changed. */
uint64_t roster_n_gone(const struct roster *r);

/* From here on joins, ends and moved-up clocks are told (shard_journal.h; NULL: no more). Both are
 * borrowed; *version is the shard's. */
void roster_tell(struct roster *r, const struct shard_journal *journal,
                 const uint64_t *version);

/* What a journal tells, again: as roster_join(), but no lease stands against it, and it was admitted,
 * so a refusal says that the journal is wrong; and the end of a worker, as LEFT, DEAD or LOST
 * (PS_ECORRUPT: it is not live, or was not expected). */
int roster_join_again(struct roster *r, const struct roster_join *join, uint64_t now_ms,
                      struct err *err) MUST_CHECK;
int roster_end_again(struct roster *r, struct worker *worker, enum worker_state state)
    MUST_CHECK;

/* Borrowed, in whatever state it is; NULL: there is no such job or rank. */
struct worker *roster_worker(struct roster *r, const char *job, uint32_t rank);

/* All leases and join deadlines begin now: those before a restart were of another time. */
void roster_renew(struct roster *r, uint64_t now_ms);

uint32_t roster_n_jobs(const struct roster *r);
struct job *roster_job(struct roster *r, uint32_t i);
const char *worker_state_name(enum worker_state state);

#endif
