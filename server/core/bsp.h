/*
 * Lock step (BSP): gradient pushes are held until their clock is complete, then combined and applied
 * once. One queue for each run of a job, sorted by (clock, rank, incarnation, seq).
 *
 * A clock is complete when every counted worker has ticked past it, but for the job's backup workers (membership.h),
 * or no worker of that run is counted any more. Pushes that come then are dropped: those that count are the first
 * ones, and a log has them and the clock in the same order. Then, clocks in ascending order:
 *   - pushes of a worker that did not finish the clock are dropped;
 *   - if two incarnations of a rank finished the clock, the older one's pushes are dropped;
 *   - the rest becomes one gradient for each row:
 *
 *     N = sum over ranks of n_r
 *     w_r = (float)((double)n_r / N)
 *     g[key] = sum over ranks of w_r * g_r[key]
 *
 * n_r is the n_samples of rank r in this clock (the largest, if it sent several pushes). The sum runs in the order of
 * (rank, sequence number) and begins with the first product, so one worker's gradient stays bit for bit the same. If
 * no rank had samples, all ranks weigh the same. The order of arrival and the placement of keys on shards change
 * nothing.
 *
 * A clock of more than a slice of rows goes on in slices (bsp_more()).
 *
 * Every push of a job that may use lock-step tables is held, also one without a section for them: the
 * weights of a clock's ranks must not depend on which shard a worker had rows for. Held pushes may take
 * BSP_HELD_BYTES_MAX; with a memory budget, a quarter of it beside the rows (or 64 MiB, if that is
 * more). Workers ahead of min clock may fill half of that. Released memory is pooled for the next
 * pushes, up to BSP_POOL_BYTES, so that clocks of equal size allocate nothing.
 */
#ifndef SERVER_CORE_BSP_H
#define SERVER_CORE_BSP_H

#include "server/core/held_push.h"

struct bsp_queue {
    struct bsp_queue *next; /* owned */
    struct job *job;        /* borrowed from the membership, which keeps it at its address */
    uint64_t run;           /* of the job: a later run's pushes are in another queue */
    struct bsp_held *first; /* owned; sorted, and never NULL but while a clock is released */
};

#define BSP_HELD_PUSHES_MAX 1024u              /* of one worker */
#define BSP_HELD_BYTES_MAX (UINT64_C(1) << 30) /* of all together, without a budget */
#define BSP_POOL_BYTES (UINT64_C(64) << 20)

/* True if a table of this job may wait for clocks: then the job's pushes are held. */
static inline bool bsp_holds_job(const struct shard *s, const struct job *job)
{
    return job->mode == TABLE_SPEC_MODE_BSP || s->n_bsp_tables > 0;
}

/* Of a push of such a job: *ret_held becomes a copy of the sections that wait; a late push is left
 * alone. -ENOMEM (with a sentence when the push is to come again once the others have caught up);
 * PS_EBUDGET, PS_ETOOBIG with a sentence. */
int bsp_copy(struct shard *s, const struct worker *worker, const struct push *push,
             const struct push_section *sections, struct bsp_held **ret_held, struct err *err)
    MUST_CHECK;

/* Takes `held` into its queue. */
void bsp_hold(struct shard *s, struct worker *worker, struct bsp_held *held);

/* A push of a checkpoint stands in its queue, and its tables have been found: they count it (shard_entry, n_held). */
void bsp_count_held(struct shard *s, const struct bsp_held *held);

/* A push of a clock that the job is over with (job_is_over()) has come: what else of its step is held is dropped,
 * too. */
void bsp_drop_late(struct shard *s, const struct worker *worker, uint64_t clock);

/* The worker has finished all steps up to `clock`. */
void bsp_tick(struct shard *s, const struct worker *worker, uint64_t clock);

/* Combines clocks that are complete, up to a slice of rows; begins in slices with one that is larger, if no
 * large push is under way. True if any was combined. One for which there is no memory stays complete, and is tried
 * again at the next call. */
bool bsp_release_some(struct shard *s);

/* Of the clock in slices, about n_bytes of rows, or to its end, and then of the next one. It takes effect like a large
 * push, at one moment, when its keys are merged: version, event, step counts. Pulls of its job's lock-step tables wait
 * until its last row has changed; all others find those rows changed that they ask for. Returns what was used. */
uint64_t bsp_more(struct shard *s, uint64_t n_bytes);

/* True if a clock is complete that has not been combined. */
bool bsp_has_complete(const struct shard *s);

/* True while there is one. */
bool bsp_is_in_slices(const struct shard *s);

/* The rest of it at once, if it has taken effect. */
void bsp_finish(struct shard *s);

/* True if this push, whose rows cost so many bytes, has a tick that would complete a clock that goes on in slices. */
bool bsp_ends_large_clock(const struct shard *s, const struct worker *worker,
                          const struct push *push, uint64_t cost);

/* Combines all clocks that are complete, at once. True if there were any. */
bool bsp_release(struct shard *s);

/* The same for one clock, the first of its job that is complete. */
bool bsp_release_clock(struct shard *s);

/* This clock of this run, which the log says was combined now. PS_ECORRUPT: it cannot have been;
 * -ENOMEM. */
int bsp_replay_combine(struct shard *s, uint64_t run, uint64_t clock) MUST_CHECK;

/* True if `a` is before `b` in a queue. */
bool bsp_is_before(const struct bsp_held *a, const struct bsp_held *b);

/* One for n_bytes, all of them; the rest of the head is zeroed. NULL: no memory. */
struct bsp_held *bsp_make_held(struct shard *s, size_t n_bytes) MUST_CHECK;

/* One user less. */
void bsp_release_held(struct shard *s, struct bsp_held *held);

/* True if a complete clock of any run of the job has not been combined to its end: then no row of lock step may be
 * read. */
bool bsp_is_behind(const struct shard *s, const struct job *job);

void bsp_deinit(struct shard *s);

#endif
