/*
 * Lock step, first half: gradient pushes wait here until their clock is complete. One queue for
 * each run of a job, sorted by (clock, rank, incarnation, seq).
 *
 * A clock is complete when every counted worker has ticked past it, or nobody of that run is
 * counted any more. Then
 *   - what a worker pushed for a clock that it did not live to finish is dropped;
 *   - of two incarnations of a rank that both finished the clock the newer one's pushes
 *     count, the older one's are dropped;
 *   - the rest is combined (shard_combine.h), clocks in ascending order.
 *
 * Every push of a job that may use lock-step tables is held, also one without a section for
 * them: the weights of a clock's ranks must not depend on which shard a worker had rows for.
 * What is held may take SHARD_HELD_BYTES_MAX; with a memory budget, a quarter of it beside the
 * rows (or 64 MiB, if that is more). Workers that are ahead of min clock may fill half of that.
 * The memory of those that are let go is kept for the next ones, up to SHARD_HELD_SPARE_BYTES, so that clocks
 * that are like each other allocate nothing.
 */
#ifndef SERVER_CORE_SHARD_LOCKSTEP_H
#define SERVER_CORE_SHARD_LOCKSTEP_H

#include "server/core/shard_combine.h"

struct shard_queue {
    struct shard_queue *next; /* owned */
    struct job *job;          /* borrowed from the roster, which keeps it at its address */
    uint64_t run;             /* of the job: a later run's pushes are in another queue */
    struct shard_held *first; /* owned; sorted, and never NULL but while a clock is released */
};

#define SHARD_HELD_PUSHES_MAX 1024u              /* of one worker */
#define SHARD_HELD_BYTES_MAX (UINT64_C(1) << 30) /* of all together, without a budget */
#define SHARD_HELD_SPARE_BYTES (UINT64_C(64) << 20)

/* A copy of what `parts` say must wait; NULL when this job's pushes are not held. -ENOMEM (with a
 * sentence when the push is to come again once the others have caught up); PS_EBUDGET,
 * PS_ETOOBIG with a sentence. */
int shard_lockstep_copy(struct shard *s, const struct worker *worker, const struct push *push,
                        const struct shard_part *parts, struct shard_held **ret_held,
                        struct err *err) MUST_CHECK;

/* Takes `held` (NULL is fine) into its queue. */
void shard_lockstep_hold(struct shard *s, struct worker *worker, struct shard_held *held);

/* The worker has finished all steps up to `clock`. */
void shard_lockstep_tick(struct shard *s, const struct worker *worker, uint64_t clock);

/* Combines all clocks that are complete. True if there were any. One for which there is no
 * memory stays complete, and is tried again at the next call. */
bool shard_lockstep_release(struct shard *s);

/* This clock of this run, which a journal says was combined now. PS_ECORRUPT: it cannot have been;
 * -ENOMEM. */
int shard_lockstep_release_again(struct shard *s, uint64_t run, uint64_t clock) MUST_CHECK;

/* Is `a` before `b` in a queue? */
bool shard_lockstep_is_before(const struct shard_held *a, const struct shard_held *b);

/* One for n_bytes, all of them; the rest of the head is zeroed. NULL: no memory. */
struct shard_held *shard_lockstep_make_held(struct shard *s, size_t n_bytes) MUST_CHECK;

/* One user less. */
void shard_lockstep_let_go(struct shard *s, struct shard_held *held);

/* Is there a complete clock that has not been combined? Then nothing of lock step may be
 * read. */
bool shard_lockstep_is_behind(const struct shard *s, const struct job *job);

void shard_lockstep_free(struct shard *s);

#endif
