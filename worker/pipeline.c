#include "worker/pipeline.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"

#define LOOK_MS 100u /* how often a wait looks for a stop */

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
    uint64_t n_read, n_fetched, n_computed, n_delivered;
    uint64_t n_allowed, first_clock; /* of number 0 */
    bool ended;                      /* the feed has no more */
    bool stopping, fetching, delivering;
    struct err failure; /* the first one that is not told yet */
    bool deliver_failed;
    struct pipeline_totals totals;

    uint64_t computing_since_ns; /* the caller's */
    _Atomic uint64_t read_ns;    /* of the feeds before this one */
    _Atomic uint64_t fetch_ns, compute_ns, deliver_ns;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void spend(_Atomic uint64_t *stage_ns, uint64_t since_ns)
{
    atomic_fetch_add_explicit(stage_ns, now_ns() - since_ns, memory_order_relaxed);
}

static struct slot *slot_of(struct pipeline *p, uint64_t number)
{
    return &p->slots[number % p->n_slots];
}

/* ---- the stages, without the lock ---- */

static int fetch(struct pipeline *p, struct slot *slot, uint64_t clock, struct err *err)
{
    uint64_t since_ns = now_ns();
    int status;

    slot->clock = clock;
    status = tables_pull(p->tables, slot, TABLES_ALL, err);
    spend(&p->fetch_ns, since_ns);
    return status;
}

static int deliver(struct pipeline *p, struct slot *slot, struct err *err)
{
    uint64_t since_ns = now_ns();
    int status = tables_push(p->tables, slot, err);

    spend(&p->deliver_ns, since_ns);
    return status;
}

/* ---- under the lock ---- */

static void keep_failure(struct pipeline *p, int status, const struct err *err)
{
    if (p->failure.status)
        return;
    p->failure = *err;
    p->failure.status = status;
}

/* It stays, until the restart if it is PS_EFENCED: the stages begin nothing new. */
static int tell_failure(struct pipeline *p, struct err *err)
{
    int status = p->failure.status;

    if (status)
        *err = p->failure;
    return status;
}

static bool may_fetch(const struct pipeline *p)
{
    return !p->failure.status && p->n_fetched - p->n_delivered < p->n_permits &&
           p->n_fetched < p->n_allowed && (p->n_fetched < p->n_read || !p->ended);
}

static bool may_deliver(const struct pipeline *p)
{
    return p->n_delivered < p->n_computed && !p->deliver_failed &&
           p->failure.status != PS_EFENCED;
}

static void count_delivered(struct pipeline *p, const struct slot *slot)
{
    p->totals.steps++;
    p->totals.samples += slot->batch->n;
    p->n_delivered++;
}

/* ---- the fetch and deliver threads ---- */

/* Takes the next batch from the feed, unless it is there from before a restart. The lock is held
 * when it is called and when it returns. */
static int read_batch(struct pipeline *p, struct err *err)
{
    struct slot *slot = slot_of(p, p->n_fetched);
    struct batch *batch;
    int status;

    if (p->n_read > p->n_fetched)
        return 0;
    pthread_mutex_unlock(&p->lock);
    status = feed_take(p->feed, &batch, err);
    pthread_mutex_lock(&p->lock);
    if (status)
        return status;
    slot->batch = batch;
    p->ended = !batch;
    p->n_read += batch != NULL;
    return 0;
}

/* The same for its rows. */
static int fetch_batch(struct pipeline *p, struct err *err)
{
    uint64_t number = p->n_fetched, clock = p->first_clock + number;
    int status;

    if (p->ended && p->n_read == number)
        return 0;
    pthread_mutex_unlock(&p->lock);
    status = fetch(p, slot_of(p, number), clock, err);
    pthread_mutex_lock(&p->lock);
    if (!status)
        p->n_fetched++;
    return status;
}

static void *fetch_all(void *arg)
{
    struct pipeline *p = arg;
    struct err err = { 0 };
    int status;

    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        if (!may_fetch(p)) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        p->fetching = true;
        status = read_batch(p, &err);
        if (!status && !p->stopping)
            status = fetch_batch(p, &err);
        if (status && status != -ECANCELED)
            keep_failure(p, status, &err);
        p->fetching = false;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void deliver_next(struct pipeline *p)
{
    struct slot *slot = slot_of(p, p->n_delivered);
    struct err err = { 0 };
    int status;

    p->delivering = true;
    pthread_mutex_unlock(&p->lock);
    status = deliver(p, slot, &err);
    pthread_mutex_lock(&p->lock);
    p->delivering = false;
    if (status) {
        p->deliver_failed = true;
        keep_failure(p, status, &err);
    } else {
        count_delivered(p, slot);
        feed_give(p->feed);
    }
    pthread_cond_broadcast(&p->changed);
}

/* What was computed before a stop is still delivered. */
static void *deliver_all(void *arg)
{
    struct pipeline *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        if (may_deliver(p))
            deliver_next(p);
        else if (p->stopping)
            break;
        else
            pthread_cond_wait(&p->changed, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the caller ---- */

uint32_t pipeline_slots_of(uint32_t n_permits)
{
    return n_permits + 1; /* the one that is only read: ahead */
}

int pipeline_new(struct tables *tables, struct store *store, const struct stop *stop,
                 uint32_t n_permits, struct pipeline **ret, struct err *err)
{
    struct pipeline *p = mem_alloc(sizeof *p);
    int status = 0;

    assert(n_permits > 0);
    p->tables = tables;
    p->store = store;
    p->stop = stop;
    p->n_permits = store->ops->overlaps ? n_permits : 1;
    p->threaded = p->n_permits > 1;
    p->n_slots = pipeline_slots_of(p->n_permits);
    p->slots = mem_alloc(p->n_slots * sizeof *p->slots);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (uint32_t i = 0; i < p->n_slots && !status; i++)
        status = tables_slot_init(tables, &p->slots[i], err);
    if (status) {
        pipeline_free(p);
        return status;
    }
    *ret = p;
    return 0;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    assert(!p->feed);
    for (uint32_t i = 0; i < p->n_slots; i++)
        tables_slot_deinit(p->tables, &p->slots[i]);
    free(p->slots);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void stop_threads(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static int start_threads(struct pipeline *p, struct err *err)
{
    int status = -pthread_create(&p->fetcher, NULL, fetch_all, p);

    if (!status) {
        status = -pthread_create(&p->deliverer, NULL, deliver_all, p);
        if (status) {
            stop_threads(p);
            pthread_join(p->fetcher, NULL);
        }
    }
    return status ? err_set(err, status, "the pipeline's threads cannot start: %s",
                            strerror(-status))
                  : 0;
}

int pipeline_begin(struct pipeline *p, struct feed *feed, uint64_t clock, uint64_t n_allowed,
                   struct err *err)
{
    int status;

    assert(!p->feed);
    p->feed = feed;
    p->n_read = p->n_fetched = p->n_computed = p->n_delivered = 0;
    p->first_clock = clock;
    p->n_allowed = n_allowed;
    p->ended = p->stopping = p->deliver_failed = false;
    p->failure.status = 0;
    status = p->threaded ? start_threads(p, err) : 0;
    if (status)
        p->feed = NULL;
    return status;
}

/* One permit: the stages in a row. */
static int fetch_here(struct pipeline *p, struct err *err)
{
    struct slot *slot = slot_of(p, p->n_fetched);
    int status;

    if (p->n_read == p->n_fetched) {
        status = feed_take(p->feed, &slot->batch, err);
        if (status)
            return status;
        p->ended = !slot->batch;
        p->n_read += slot->batch != NULL;
        if (p->ended)
            return 0;
    }
    status = fetch(p, slot, p->first_clock + p->n_fetched, err);
    if (!status)
        p->n_fetched++;
    return status;
}

/* The store hears of the batch behind the one that is fetched, if that one has been read. */
static int look_ahead(struct pipeline *p, struct err *err)
{
    struct slot *slot = slot_of(p, p->n_read);
    uint64_t since_ns = now_ns();
    int status = 0;

    if (!p->store->ops->ahead || p->n_read > p->n_fetched || p->n_read >= p->n_allowed ||
        !feed_is_ready(p->feed))
        return 0;
    status = feed_take(p->feed, &slot->batch, err);
    if (status || !slot->batch)
        return 0; /* to be told, or found, when its turn comes */
    p->n_read++;
    status = tables_ahead(p->tables, slot, err);
    spend(&p->fetch_ns, since_ns);
    return status;
}

static int next_here(struct pipeline *p, struct err *err)
{
    int status = may_fetch(p) ? fetch_here(p, err) : 0;

    return status || p->n_fetched == p->n_computed ? status : look_ahead(p, err);
}

static void wait_a_little(struct pipeline *p)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

/* Has everything been delivered that there is to be fetched? */
static bool is_through(const struct pipeline *p)
{
    bool all_fetched = p->n_fetched == p->n_allowed || (p->ended && p->n_fetched == p->n_read);

    return all_fetched && !p->fetching && p->n_delivered == p->n_fetched;
}

static int next_of_thread(struct pipeline *p, struct err *err)
{
    int status;

    pthread_mutex_lock(&p->lock);
    while (!p->failure.status && p->n_fetched == p->n_computed && !is_through(p) &&
           !stop_asked(p->stop))
        wait_a_little(p);
    status = tell_failure(p, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

int pipeline_next(struct pipeline *p, struct slot **ret, struct err *err)
{
    int status = p->threaded ? next_of_thread(p, err) : next_here(p, err);

    *ret = NULL;
    if (status)
        return status;
    pthread_mutex_lock(&p->lock);
    if (p->n_fetched > p->n_computed)
        *ret = slot_of(p, p->n_computed);
    pthread_mutex_unlock(&p->lock);
    p->computing_since_ns = now_ns();
    return 0;
}

static int deliver_here(struct pipeline *p, struct err *err)
{
    struct slot *slot = slot_of(p, p->n_delivered);
    int status = deliver(p, slot, err);

    if (status)
        return status;
    count_delivered(p, slot);
    feed_give(p->feed);
    return 0;
}

int pipeline_done(struct pipeline *p, struct err *err)
{
    int status;

    spend(&p->compute_ns, p->computing_since_ns);
    pthread_mutex_lock(&p->lock);
    assert(p->n_computed < p->n_fetched);
    p->n_computed++;
    pthread_cond_broadcast(&p->changed);
    status = tell_failure(p, err);
    pthread_mutex_unlock(&p->lock);
    return p->threaded ? status : deliver_here(p, err);
}

void pipeline_allow(struct pipeline *p, uint64_t n_more)
{
    pthread_mutex_lock(&p->lock);
    p->n_allowed = n_more < UINT64_MAX - p->n_allowed ? p->n_allowed + n_more : UINT64_MAX;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* The store is told last: what a stage has in hand when it hears of it must not get through to
 * the new incarnation. */
uint64_t pipeline_restart(struct pipeline *p)
{
    uint64_t clock, resumed_at;

    pthread_mutex_lock(&p->lock);
    while (p->fetching || p->delivering)
        pthread_cond_wait(&p->changed, &p->lock);
    resumed_at = p->store->ops->resume(p->store);
    clock = p->first_clock + p->n_delivered;
    if (clock < resumed_at)
        clock = resumed_at;
    p->failure.status = 0;
    p->deliver_failed = false;
    p->n_fetched = p->n_computed = p->n_delivered;
    p->first_clock = clock - p->n_delivered;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return clock;
}

/* The fetch thread may be in a pull that a shard has parked. */
static void join_threads(struct pipeline *p)
{
    stop_threads(p);
    pthread_mutex_lock(&p->lock);
    while (p->fetching) {
        if (p->store->ops->cancel)
            p->store->ops->cancel(p->store);
        wait_a_little(p);
    }
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->fetcher, NULL);
    pthread_join(p->deliverer, NULL);
}

int pipeline_end(struct pipeline *p, struct err *err)
{
    if (p->threaded)
        join_threads(p);
    atomic_fetch_add(&p->read_ns, feed_busy_ns(p->feed));
    p->feed = NULL;
    return tell_failure(p, err);
}

uint64_t pipeline_clock(struct pipeline *p)
{
    uint64_t clock;

    pthread_mutex_lock(&p->lock);
    clock = p->first_clock + p->n_delivered;
    pthread_mutex_unlock(&p->lock);
    return clock;
}

void pipeline_totals(struct pipeline *p, struct pipeline_totals *ret)
{
    pthread_mutex_lock(&p->lock);
    *ret = p->totals;
    pthread_mutex_unlock(&p->lock);
}

void pipeline_stages(struct pipeline *p, struct stages *ret)
{
    *ret = (struct stages){ 0 };
    ret->ns[STAGE_READ] = p->read_ns + (p->feed ? feed_busy_ns(p->feed) : 0);
    ret->ns[STAGE_FETCH] = p->fetch_ns;
    ret->ns[STAGE_COMPUTE] = p->compute_ns;
    ret->ns[STAGE_DELIVER] = p->deliver_ns;
}
