/*
 * Membership: jobs, their workers, clocks, leases, incarnations, sequence numbers. It holds numbers
 * alone; time is an argument.
 *
 *     worker     counted in min clock   next state
 *     EXPECTED   yes, with clock 0      join -> LIVE; the job's join deadline -> LOST
 *     LIVE       yes                    leave -> LEFT; lease over: suspected (is_suspected), then DEAD
 *                                       when all shards agree; or given up (is_given_up)
 *     LEFT       no                     a join by a new incarnation, or by the same one if it does not
 *                                       know that all of its pushes are committed -> LIVE
 *     DEAD,LOST  no                     a join by a new incarnation -> LIVE
 *
 * Backup workers. A job in lock step may have n_backups of them: of the n workers that count, the first n - n_backups
 * to finish a step are enough (Chen et al. 2016, Revisiting Distributed Synchronous SGD). Each shard goes by the order
 * in which pushes reach it, as each variable does in TensorFlow's SyncReplicasOptimizer (an accumulator for each): a
 * worker may be in time at one shard and late at another, and shards need not wait for each other to agree. Min clock
 * is then the (n_backups + 1)-th smallest clock. A worker that is behind goes on at the job's min clock.
 *
 * A returning worker is a new incarnation (a greater number). It starts at the min clock or at its own
 * clock, whichever is greater. Messages of older incarnations are fenced. A join by the same incarnation
 * is a reconnect while the worker is LIVE; after DEAD it is refused with PS_EFENCED.
 *
 * A join brings the worker's clock and its last acknowledged push. If the shard has lost some of these
 * pushes (a log that is not synced before the reply), the clock keeps other workers from waiting for a
 * step that is over.
 *
 * If all workers of a job have left, died or been lost, the job starts afresh, with new settings, at
 * the next join of a worker that has finished no step. It also does so at a join with other settings if
 * those that came have left without a step or a push and the rest is expected: a start that failed.
 * Fenced incarnations stay fenced. A worker that has finished steps continues the earlier run.
 *
 * Leases and join deadlines end in membership_advance() only: a message that arrived before it counts.
 *
 * Suspicion. A worker whose lease is over at this shard may still reach other shards, and no shard may go on without
 * it before all shards refuse it. So this shard suspects the worker first: it refuses the worker's messages, but still
 * counts the worker, and lock step waits for it. Workers of the job that relay (membership_join.relays) get suspicions
 * in replies to heartbeats and carry them to the job's other shards, which then suspect the worker, too. When all
 * shards refuse it, the relaying workers say so, and it is DEAD. suspicion.h has how many of them it takes, as one of
 * them may be wrong. If those workers of the job that are heard do not relay, it is DEAD once its lease is over.
 * Suspicions are not in the log or in checkpoints: after a restart all leases begin anew.
 *
 * Silence of all. A shard that hears no worker of a job cannot tell whether they are gone, or it is cut off while they
 * go on at other shards. So it decides nothing:
 *
 *     HEARD      a message of any worker of the job came within a lease; else, and if one may relay, -> GIVEN UP
 *     GIVEN UP   its workers are reported as dead, and the job as over: it can start afresh, or its tables be dropped.
 *                But they count, so nothing is combined; and none is refused but suspects that others know of.
 *                A message or a join of one of them, by the same incarnation or a new one -> HEARD: all go on as if
 *                nothing had been, and each of the others has a lease to be heard. Who is not is suspected then
 *                A join that starts the job afresh, the end of its tables, a new job that needs its place -> DEAD
 *                After MEMBERSHIP_GIVEN_UP_MS -> DEAD
 *
 * The log has GIVEN UP only once it is DEAD, before the join that follows: a restart finds LIVE workers, which have a
 * lease to come back, and are given up again. A cluster of one shard has nobody to agree with: there they are DEAD.
 */
#ifndef SERVER_CORE_MEMBERSHIP_H
#define SERVER_CORE_MEMBERSHIP_H

#include <stdbool.h>

#include "common/status.h"
#include "server/core/job.h"

/* Who is given up for so long is dead, so that what its job still holds is combined. Three times the time in which a
 * worker that cannot reach this shard ends with a sentence, wherever else it is heard (psworker --give-up). */
#define MEMBERSHIP_GIVEN_UP_MS UINT64_C(180000)

struct membership;
struct shard_events;
struct snapshot_writer;
struct snapshot_reader;

struct membership *membership_new(uint32_t lease_ms, uint32_t join_ms);
void membership_free(struct membership *r);

/* The cluster has no other shard: there is nobody to agree with. */
void membership_set_alone(struct membership *r);

/* *ret_worker is borrowed and keeps its address for the membership's life. A job that starts afresh
 * keeps no old worker, so connections hold {job name, rank, incarnation} and call membership_find() for
 * each message.
 *
 * -EBUSY: another process (by its name) has this rank and sent a message within half a lease; PS_EJOB:
 * the job runs with other settings (err names which); PS_EFENCED; -ENOSPC (MEMBERSHIP_N_JOBS_MAX jobs
 * have workers); -ENOMEM; -EAGAIN (the log is full); -EINVAL with a sentence. If no place is free, a job
 * without counted workers gives its place to the new one. */
int membership_join(struct membership *r, const struct membership_join *join, uint64_t now_ms,
                    struct worker **ret_worker, struct err *err) MUST_CHECK;

/* The worker, if this incarnation is the current one and LIVE; renews its lease. PS_EFENCED (counted) if
 * it is suspected or dead, left, or has a newer incarnation; PS_ENOJOIN if there is no such job or rank. */
int membership_find(struct membership *r, const char *job, uint32_t rank, uint64_t incarnation,
                    uint64_t now_ms, struct worker **ret_worker) MUST_CHECK;

/* A message of this worker has come, or it is being worked at: its lease begins anew, and so do those of workers that
 * are given up with it. */
void membership_hear(struct worker *worker, uint64_t now_ms);

/* True if a peer may report this clock for the worker. */
bool membership_clock_is_near(const struct worker *worker, uint64_t clock);

/* The smallest incarnation of this rank that joins as a new one: sent with PS_EFENCED. The clock of the
 * refused worker may be behind that of the rank's earlier process. */
uint64_t membership_fence(const struct membership *r, const char *job, uint32_t rank);

/* A pull reports that its worker has finished `clock` steps (its own clock, less the steps under way). A
 * returning worker that another shard has moved up is moved up here too; else it would wait for itself.
 * True if the clock moved; then call shard_advance(). Ignored: a clock past MEMBERSHIP_CLOCK_END, and one of a
 * worker that is behind, because its push is still to come. */
bool membership_advance_clock(struct worker *worker, uint64_t clock);

void membership_leave(struct membership *r, struct worker *worker);

/* What a worker of the job says: that a shard suspects this incarnation of `rank`, or (is_agreed) that all shards
 * refuse it. A worker may say it of itself: a shard has not answered it for a lease. */
struct membership_report {
    uint32_t from, rank;
    uint64_t incarnation;
    bool is_agreed;
};

/* The worker is suspected or DEAD then, if that is enough (suspicion.h). Ignored: reports of a worker that does not
 * relay. True if it stopped counting; then call shard_advance(). */
bool membership_suspect(struct membership *r, const struct job *job,
                        const struct membership_report *report, uint64_t now_ms);

/* True if `from` has said that a shard suspects this worker, and this shard does not believe it (yet). */
bool membership_doubts(const struct worker *worker, uint32_t from);

/* True if any worker is suspected, as of the last membership_advance(). */
bool membership_has_suspects(const struct membership *r);

/* Drops what workers have reported, and what they will: logs and checkpoints are as before there were reports. */
void membership_drop_learning(struct membership *r);

/* What a worker reports of its training (learning.h), in whichever state it is: numbers for people. 0 also if it has
 * reported too often lately, and nothing is changed; -EINVAL: learning_report_wrong() has the sentence; -EAGAIN (the
 * log is full) and -ENOMEM: the report is lost. */
int membership_learn(struct membership *r, struct worker *worker,
                     const struct learning_report *report, uint64_t now_ms, uint64_t unix_ms)
    MUST_CHECK;

/* True if this worker is counted: expected or live. */
bool job_counts(const struct worker *w);

/* The slowest counted worker's clock, leaving out n_backups of them that are slower; without any left, the greatest
 * clock that any worker had. It never falls. */
uint64_t job_min_clock(const struct job *job);

/* True if every counted worker has finished step `clock`, but for n_backups of them; without any left, any worker. */
bool job_all_ticked(const struct job *job, uint64_t clock);

/* True if the job may be over with this step although a worker that counts has not finished it, whose gradients for
 * lock-step tables come too late then. */
bool job_is_over(const struct job *job, uint64_t clock);

/* True if any worker is counted and not given up. */
bool job_is_alive(const struct job *job);

/* True if all that are counted are given up, and any is. */
bool job_is_deserted(const struct job *job);

/* Ends leases (silent for longer than lease_ms) and join deadlines that are over. True if a
 * worker stopped counting. */
bool membership_advance(struct membership *r, uint64_t now_ms);

/* Workers of the job that are given up are DEAD: it is over here. */
void membership_end_deserted(struct membership *r, const struct job *job);

/* Workers that have left, died or been lost since the start. Waiters for a min clock check again when it
 * changes. */
uint64_t membership_n_gone(const struct membership *r);

/* Sets the receiver of joins, ends and moved-up clocks (shard_events.h); NULL: none. Both are borrowed;
 * *version is the shard's. */
void membership_set_events(struct membership *r, const struct shard_events *events,
                           const uint64_t *version);

/* Replays an event of the log. A join is as membership_join(), but ignores leases; it was admitted before,
 * so a refusal means that the log is wrong. The end of a worker is LEFT, DEAD or LOST (PS_ECORRUPT: it is
 * not live, or was not expected). */
int membership_replay_join(struct membership *r, const struct membership_join *join,
                           uint64_t now_ms, struct err *err) MUST_CHECK;
int membership_replay_end(struct membership *r, struct worker *worker, enum worker_state state)
    MUST_CHECK;

/* Borrowed, in any state; NULL: there is no such job or rank. */
struct worker *membership_worker(struct membership *r, const char *job, uint32_t rank);

/* Restarts all leases and join deadlines at now_ms, after a restart, which may have lost pushes of any worker. */
void membership_renew(struct membership *r, uint64_t now_ms);

/* As bytes: all but times and statistics; snapshot_meta.h has the format. Without memory: w->no_memory. */
void membership_encode(const struct membership *r, struct snapshot_writer *w);

/* Decodes into a membership without jobs; all leases begin at now_ms. Every rule is checked, because the
 * bytes are untrusted. PS_ECORRUPT or -ENOMEM: it has some of the jobs. */
int membership_decode(struct membership *r, struct snapshot_reader *src, uint64_t now_ms)
    MUST_CHECK;

/* A worker that is expected is LOST, before its time. Then call shard_advance(). */
void membership_give_up(struct membership *r, struct worker *worker);

uint32_t membership_n_jobs(const struct membership *r);
struct job *membership_job(struct membership *r, uint32_t i);
const char *worker_state_name(enum worker_state state);

#endif
