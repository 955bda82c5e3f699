/*
 * A pipeline from inside: where every batch is, and what both ways of running the stages (in the
 * caller's thread: pipeline.c, on threads of their own: pipeline_threads.c) do.
 */
#ifndef WORKER_PIPELINE_STATE_H
#define WORKER_PIPELINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/data/feed.h"
#include "worker/stop.h"
#include "worker/tables.h"

struct pipeline {
    struct tables *tables; /* borrowed, as store, stop and feed */
    struct store *store;
    const struct stop *stop;
    struct feed *feed; /* NULL: between epochs */
    uint32_t n_permits, n_slots;
    bool threaded;
    struct slot *slots; /* owned, n_slots: number i stands in slots[i % n_slots] */
    pthread_t fetcher, deliverer;
    pthread_mutex_t lock;
    pthread_cond_t changed;

    /* Under the lock while the threads run. */
    uint64_t n_read, n_fetched, n_taken, n_computed, n_delivered;
    uint64_t n_allowed, first_clock; /* of number 0 */
    bool ended;                      /* the feed has no more */
    bool stopping, fetching, delivering;
    struct err failure; /* the first one that is not told yet */
    bool deliver_failed;
    uint64_t n_steps, n_samples; /* delivered, in all epochs */

    uint64_t computed_ns;     /* when the last batch was done; the caller's */
    _Atomic uint64_t read_ns; /* of the feeds before this one */
    _Atomic uint64_t fetch_ns, compute_ns, deliver_ns;
};

/* The slot of the batch with this number. */
struct slot *pipeline_state_slot(struct pipeline *p, uint64_t number);

/* CLOCK_MONOTONIC; and what has passed since then goes to a stage. */
uint64_t pipeline_state_now_ns(void);
void pipeline_state_spend(_Atomic uint64_t *stage_ns, uint64_t since_ns);

/* ---- the stages, without the lock: they take their time ---- */

int pipeline_state_fetch(struct pipeline *p, struct slot *slot, uint64_t clock, struct err *err)
    MUST_CHECK;
int pipeline_state_deliver(struct pipeline *p, struct slot *slot, struct err *err) MUST_CHECK;

/* ---- under the lock ---- */

/* The first failure stays, until the restart if it is PS_EFENCED: the stages begin nothing new.
 * Its status, or 0. */
void pipeline_state_keep_failure(struct pipeline *p, int status, const struct err *err);
int pipeline_state_tell_failure(struct pipeline *p, struct err *err);

/* Is there a permit, and something to fetch? */
bool pipeline_state_may_fetch(const struct pipeline *p);
void pipeline_state_count_delivered(struct pipeline *p, const struct slot *slot);

/* Until something changes, but not for long: a stop has to be looked for. */
void pipeline_state_wait_a_little(struct pipeline *p);

#endif
