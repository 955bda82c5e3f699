/*
 * Lock step (BSP): gradient pushes are held until their clock is complete, then combined and applied
 * once. One queue for each run of a job, sorted by (clock, rank, incarnation, seq).
 *
 * A clock is complete when every counted worker has ticked past it, or no worker of that run is counted
 * any more. Then, clocks in ascending order:
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
 * Every push of a job that may use lock-step tables is held, also one without a section for them: the
 * weights of a clock's ranks must not depend on which shard a worker had rows for. Held pushes may take
 * BSP_HELD_BYTES_MAX; with a memory budget, a quarter of it beside the rows (or 64 MiB, if that is
 * more). Workers ahead of min clock may fill half of that. Released memory is pooled for the next
 * pushes, up to BSP_POOL_BYTES, so that clocks of equal size allocate nothing.
 */
#ifndef SERVER_CORE_BSP_H
#define SERVER_CORE_BSP_H

#include "server/core/shard_internal.h"

/* A push that waits for its clock: an owned copy of its sections for lock-step tables, checked
 * when it came. */
struct bsp_held {
    struct bsp_held *next; /* owned */
    uint32_t n_users;      /* the queue; a scan that has still to read it (snapshot_scan.h) */
    uint32_t rank;
    uint64_t incarnation, seq, clock;
    uint32_t n_samples;
    bool finished;    /* its worker has ticked past its clock */
    size_t n_bytes;   /* that it takes, bytes of the sections included */
    size_t cap_bytes; /* of this allocation, which may have held another one before */
    uint32_t n_sections;
    struct section sections[]; /* their bytes stand behind them */
};

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

/* The worker has finished all steps up to `clock`. */
void bsp_tick(struct shard *s, const struct worker *worker, uint64_t clock);

/* Combines all clocks that are complete. True if there were any. One for which there is no
 * memory stays complete, and is tried again at the next call. */
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

/* True if a complete clock has not been combined: then no row of lock step may be read. */
bool bsp_is_behind(const struct shard *s, const struct job *job);

void bsp_deinit(struct shard *s);

#endif
