#include "worker/pipeline.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "worker/pipeline_threads.h"

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

uint32_t pipeline_n_permits(const struct pipeline *p)
{
    return p->n_permits;
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

int pipeline_begin(struct pipeline *p, struct feed *feed, uint64_t clock, uint64_t n_allowed,
                   struct err *err)
{
    int status;

    assert(!p->feed);
    p->feed = feed;
    p->n_read = p->n_fetched = p->n_taken = p->n_computed = p->n_delivered = 0;
    p->first_clock = clock;
    p->n_allowed = n_allowed;
    p->ended = p->stopping = p->deliver_failed = false;
    p->failure.status = 0;
    status = p->threaded ? pipeline_threads_start(p, err) : 0;
    if (status)
        p->feed = NULL;
    return status;
}

/* One permit: the stages in a row. */
static int fetch_here(struct pipeline *p, struct err *err)
{
    struct slot *slot = pipeline_state_slot(p, p->n_fetched);
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
    status = pipeline_state_fetch(p, slot, p->first_clock + p->n_fetched, err);
    if (!status)
        p->n_fetched++;
    return status;
}

/* The store hears of the batch behind the one that is fetched, if that one has been read. */
static int look_ahead(struct pipeline *p, struct err *err)
{
    struct slot *slot = pipeline_state_slot(p, p->n_read);
    uint64_t since_ns = pipeline_state_now_ns();
    int status = 0;

    if (!p->store->ops->ahead || p->n_read > p->n_fetched || p->n_read >= p->n_allowed ||
        !feed_is_ready(p->feed))
        return 0;
    status = feed_take(p->feed, &slot->batch, err);
    if (status || !slot->batch)
        return 0; /* to be told, or found, when its turn comes */
    p->n_read++;
    status = tables_ahead(p->tables, slot, err);
    pipeline_state_spend(&p->fetch_ns, since_ns);
    return status;
}

static int next_here(struct pipeline *p, struct err *err)
{
    int status = pipeline_state_may_fetch(p) ? fetch_here(p, err) : 0;

    return status || p->n_fetched == p->n_computed ? status : look_ahead(p, err);
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
        pipeline_state_wait_a_little(p);
    status = pipeline_state_tell_failure(p, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* The next fetched batch, if there is one, is the caller's. */
static struct slot *take(struct pipeline *p)
{
    struct slot *slot = NULL;

    pthread_mutex_lock(&p->lock);
    if (p->n_fetched > p->n_taken)
        slot = pipeline_state_slot(p, p->n_taken++);
    pthread_mutex_unlock(&p->lock);
    if (slot)
        slot->since_ns = pipeline_state_now_ns();
    return slot;
}

int pipeline_next(struct pipeline *p, struct slot **ret, struct err *err)
{
    int status;

    assert(p->n_taken == p->n_computed);
    status = p->threaded ? next_of_thread(p, err) : next_here(p, err);
    *ret = status ? NULL : take(p);
    return status;
}

struct slot *pipeline_ready(struct pipeline *p)
{
    return take(p);
}

static int deliver_here(struct pipeline *p, struct err *err)
{
    struct slot *slot = pipeline_state_slot(p, p->n_delivered);
    int status = pipeline_state_deliver(p, slot, err);

    if (status)
        return status;
    pipeline_state_count_delivered(p, slot);
    feed_give(p->feed);
    return 0;
}

/* Of two that were under way at a time, the time of both counts once. */
static void note_computed(struct pipeline *p, struct slot *slot)
{
    const uint64_t now_ns = pipeline_state_now_ns();

    if (slot->since_ns < p->computed_ns)
        slot->since_ns = p->computed_ns;
    p->computed_ns = now_ns;
    slot->compute_ns = now_ns - slot->since_ns;
    pipeline_state_spend(&p->compute_ns, slot->since_ns);
}

int pipeline_done(struct pipeline *p, struct err *err)
{
    int status;

    assert(p->n_computed < p->n_taken);
    note_computed(p, pipeline_state_slot(p, p->n_computed));
    pthread_mutex_lock(&p->lock);
    p->n_computed++;
    pthread_cond_broadcast(&p->changed);
    status = pipeline_state_tell_failure(p, err);
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
    tables_restart(p->tables);
    clock = p->first_clock + p->n_delivered;
    if (clock < resumed_at)
        clock = resumed_at;
    p->failure.status = 0;
    p->deliver_failed = false;
    p->n_fetched = p->n_taken = p->n_computed = p->n_delivered;
    p->first_clock = clock - p->n_delivered;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return clock;
}

int pipeline_end(struct pipeline *p, struct err *err)
{
    if (p->threaded)
        pipeline_threads_end(p);
    atomic_fetch_add(&p->read_ns, feed_busy_ns(p->feed));
    p->feed = NULL;
    return pipeline_state_tell_failure(p, err);
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
    *ret = (struct pipeline_totals){ p->n_steps, p->n_samples };
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
