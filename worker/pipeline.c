#include "worker/pipeline.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/memory.h"

#define FETCHERS_MAX 3u
#define POLL_MS 100u /* how often a wait polls the stop signal */

struct pipeline {
    struct model_tables *tables; /* borrowed, as store, stop and loader */
    struct param_store *store;
    const struct stop_signal *stop;
    struct data_loader *loader; /* NULL: between epochs */
    uint32_t n_permits, n_buffers;
    bool threaded, follows_job;
    struct step_buffers
        *buffers; /* owned, n_buffers: number i stands in buffers[i % n_buffers] */
    pthread_t fetchers[FETCHERS_MAX], deliverer;
    uint32_t n_fetchers, n_fetchers_started;
    pthread_mutex_t lock;
    pthread_cond_t changed;

    /* Under the lock while the threads run. */
    uint64_t n_read, n_claimed, n_fetched, n_acquired, n_computed, n_delivered;
    uint64_t n_allowed, first_clock; /* of number 0 */
    bool ended;                      /* the loader has no more batches */
    bool stopping, claiming, delivering;
    uint32_t n_fetching; /* threads that read or pull */
    struct err failure;  /* the first one */
    bool deliver_failed;
    uint64_t n_steps, n_samples; /* delivered, in all epochs */

    uint64_t computed_ns;     /* when the last batch was done; the caller's */
    _Atomic uint64_t read_ns; /* of earlier loaders */
    _Atomic uint64_t fetch_ns, compute_ns, deliver_ns;
};

/* The time since then is a stage's. */
static void add_time_since(_Atomic uint64_t *stage_ns, uint64_t since_ns)
{
    atomic_fetch_add_explicit(stage_ns, clock_mono_ns() - since_ns, memory_order_relaxed);
}

/* The buffers of the batch with this number. */
static struct step_buffers *buffers_at(struct pipeline *p, uint64_t number)
{
    return &p->buffers[number % p->n_buffers];
}

/* ---- the stages, without the lock: they take long ---- */

static int fetch(struct pipeline *p, struct step_buffers *step, uint64_t clock, struct err *err)
{
    uint64_t since_ns = clock_mono_ns();
    int status;

    step->clock = clock;
    status = model_tables_pull(p->tables, step, MODEL_TABLES_STEP, err);
    add_time_since(&p->fetch_ns, since_ns);
    return status;
}

static int deliver(struct pipeline *p, struct step_buffers *step, struct err *err)
{
    uint64_t since_ns = clock_mono_ns();
    int status = model_tables_push(p->tables, step, err);

    add_time_since(&p->deliver_ns, since_ns);
    return status;
}

/* ---- under the lock ---- */

/* The first failure stays. */
static void set_failure(struct pipeline *p, int status, const struct err *err)
{
    if (p->failure.status)
        return;
    p->failure = *err;
    p->failure.status = status;
}

/* Its status, or 0. It stays, until the restart if it is PS_EFENCED: no stage begins anything. */
static int get_failure(struct pipeline *p, struct err *err)
{
    int status = p->failure.status;

    if (status)
        *err = p->failure;
    return status;
}

/* Is there a permit, and a batch to fetch? */
static bool may_fetch(const struct pipeline *p)
{
    return !p->failure.status && p->n_claimed - p->n_delivered < p->n_permits &&
           p->n_claimed < p->n_allowed && (p->n_claimed < p->n_read || !p->ended);
}

static void count_delivered(struct pipeline *p, const struct step_buffers *step)
{
    p->n_steps++;
    p->n_samples += step->batch->n;
    p->n_delivered++;
}

/* Until something changes, but at most POLL_MS, whatever time of day it is: a stop signal changes nothing here. */
static void wait_for_change(struct pipeline *p)
{
    const uint64_t until_ms = clock_mono_ms() + POLL_MS;
    const struct timespec until = { (time_t)(until_ms / 1000),
                                    (long)(until_ms % 1000 * 1000000) };

    pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until);
}

static bool may_deliver(const struct pipeline *p)
{
    return p->n_delivered < p->n_computed && !p->deliver_failed &&
           p->failure.status != PS_EFENCED;
}

/* Acquires the next batch from the loader, unless it is there from before a restart. The caller holds
 * the lock; it is released while the loader is asked. */
static int read_batch(struct pipeline *p, struct err *err)
{
    struct step_buffers *step = buffers_at(p, p->n_claimed);
    struct batch *batch;
    int status;

    if (p->n_read > p->n_claimed)
        return 0;
    pthread_mutex_unlock(&p->lock);
    status = data_loader_acquire(p->loader, &batch, err);
    pthread_mutex_lock(&p->lock);
    if (status)
        return status;
    step->batch = batch;
    p->ended = !batch;
    p->n_read += batch != NULL;
    return 0;
}

/* The next batch is this thread's, once another one has its own. *ret_number: UINT64_MAX if there is none. */
static int claim_batch(struct pipeline *p, uint64_t *ret_number, struct err *err)
{
    int status;

    *ret_number = UINT64_MAX;
    p->claiming = true;
    status = read_batch(p, err);
    if (!status && !p->stopping && p->n_read > p->n_claimed)
        *ret_number = p->n_claimed++;
    p->claiming = false;
    pthread_cond_broadcast(&p->changed);
    return status;
}

void pipeline_follow_job(struct pipeline *p)
{
    p->follows_job = true;
}

/* Of the batch with this number, before it is pulled for. */
static uint64_t clock_of(struct pipeline *p, uint64_t number)
{
    struct ps_stats stats = { 0 };

    if (p->follows_job)
        p->store->ops->stats(p->store, &stats);
    if (stats.min_clock > p->first_clock + number)
        p->first_clock = stats.min_clock - number;
    return p->first_clock + number;
}

/* Pulls its rows; the lock likewise. Those that are fetched before an earlier batch wait for it. */
static int fetch_batch(struct pipeline *p, uint64_t number, struct err *err)
{
    struct step_buffers *step = buffers_at(p, number);
    const uint64_t clock = clock_of(p, number);
    int status;

    step->is_fetched = false;
    do { /* a pull that was cancelled is sent again, unless the epoch ends */
        pthread_mutex_unlock(&p->lock);
        status = fetch(p, step, clock, err);
        pthread_mutex_lock(&p->lock);
    } while (status == -ECANCELED && !p->stopping && !p->failure.status);
    step->is_fetched = !status;
    while (p->n_fetched < p->n_claimed && buffers_at(p, p->n_fetched)->is_fetched)
        p->n_fetched++;
    return status;
}

static void *fetch_all(void *arg)
{
    struct pipeline *p = arg;
    struct err err = { 0 };
    uint64_t number;
    int status;

    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        if (p->claiming || !may_fetch(p)) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        p->n_fetching++;
        status = claim_batch(p, &number, &err);
        if (!status && number != UINT64_MAX)
            status = fetch_batch(p, number, &err);
        if (status && status != -ECANCELED)
            set_failure(p, status, &err);
        p->n_fetching--;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void deliver_next(struct pipeline *p)
{
    struct step_buffers *step = buffers_at(p, p->n_delivered);
    struct err err = { 0 };
    int status;

    p->delivering = true;
    pthread_mutex_unlock(&p->lock);
    status = deliver(p, step, &err);
    pthread_mutex_lock(&p->lock);
    p->delivering = false;
    if (status) {
        p->deliver_failed = true;
        set_failure(p, status, &err);
    } else {
        count_delivered(p, step);
        data_loader_release(p->loader);
    }
    pthread_cond_broadcast(&p->changed);
}

/* Batches computed before a stop are still delivered. */
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

static void stop_threads(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void join_fetchers(struct pipeline *p)
{
    for (uint32_t i = 0; i < p->n_fetchers_started; i++)
        pthread_join(p->fetchers[i], NULL);
    p->n_fetchers_started = 0;
}

/* Fetch and deliver on threads of their own. -EAGAIN: none runs. */
static int start_threads(struct pipeline *p, struct err *err)
{
    int status = 0;

    while (p->n_fetchers_started < p->n_fetchers && !status) {
        status = -pthread_create(&p->fetchers[p->n_fetchers_started], NULL, fetch_all, p);
        p->n_fetchers_started += !status;
    }
    if (!status)
        status = -pthread_create(&p->deliverer, NULL, deliver_all, p);
    if (!status)
        return 0;
    stop_threads(p);
    join_fetchers(p);
    return err_set(err, status, "the pipeline's threads cannot start: %s", strerror(-status));
}

/* The fetch threads may be in pulls that a shard has parked: those are cancelled. Batches that were
 * computed are delivered first, where that is possible. */
static void end_threads(struct pipeline *p)
{
    stop_threads(p);
    pthread_mutex_lock(&p->lock);
    while (p->n_fetching) {
        if (p->store->ops->cancel)
            p->store->ops->cancel(p->store);
        wait_for_change(p);
    }
    pthread_mutex_unlock(&p->lock);
    join_fetchers(p);
    pthread_join(p->deliverer, NULL);
}

uint32_t pipeline_n_buffers(uint32_t n_permits)
{
    return n_permits + 1; /* the one that is only read: ahead */
}

int pipeline_new(struct model_tables *tables, struct param_store *store,
                 const struct stop_signal *stop, uint32_t n_permits, struct pipeline **ret,
                 struct err *err)
{
    struct pipeline *p = memory_alloc(sizeof *p);
    int status = 0;

    assert(n_permits > 0);
    p->tables = tables;
    p->store = store;
    p->stop = stop;
    p->n_permits = store->ops->overlaps ? n_permits : 1;
    p->threaded = p->n_permits > 1;
    p->n_fetchers = model_tables_pulls_overlap(tables) ? p->n_permits : 1;
    if (p->n_fetchers > FETCHERS_MAX)
        p->n_fetchers = FETCHERS_MAX;
    p->n_buffers = pipeline_n_buffers(p->n_permits);
    p->buffers = memory_alloc(p->n_buffers * sizeof *p->buffers);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (uint32_t i = 0; i < p->n_buffers && !status; i++)
        status = model_tables_step_init(tables, &p->buffers[i], err);
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

uint32_t pipeline_n_fetchers(const struct pipeline *p)
{
    return p->n_fetchers;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    assert(!p->loader);
    for (uint32_t i = 0; i < p->n_buffers; i++)
        model_tables_step_deinit(p->tables, &p->buffers[i]);
    free(p->buffers);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int pipeline_begin(struct pipeline *p, struct data_loader *loader, uint64_t clock,
                   uint64_t n_allowed, struct err *err)
{
    int status;

    assert(!p->loader);
    p->loader = loader;
    p->n_read = p->n_claimed = p->n_fetched = 0;
    p->n_acquired = p->n_computed = p->n_delivered = 0;
    p->first_clock = clock;
    p->n_allowed = n_allowed;
    p->ended = p->stopping = p->deliver_failed = false;
    p->failure.status = 0;
    status = p->threaded ? start_threads(p, err) : 0;
    if (status)
        p->loader = NULL;
    return status;
}

/* One permit: the stages run one after the other in the caller. */
static int fetch_here(struct pipeline *p, struct err *err)
{
    struct step_buffers *step = buffers_at(p, p->n_fetched);
    int status;

    if (p->n_read == p->n_fetched) {
        status = data_loader_acquire(p->loader, &step->batch, err);
        if (status)
            return status;
        p->ended = !step->batch;
        p->n_read += step->batch != NULL;
        if (p->ended)
            return 0;
    }
    status = fetch(p, step, clock_of(p, p->n_fetched), err);
    if (!status)
        p->n_claimed = ++p->n_fetched;
    return status;
}

/* Before the arrays of a batch that was announced have another use. */
static void end_prefetch(struct pipeline *p)
{
    if (p->store->ops->prefetch_end)
        p->store->ops->prefetch_end(p->store);
}

/* Announces the batch behind the one that is fetched to the store, if that one has been read. */
static int announce_next(struct pipeline *p, struct err *err)
{
    struct step_buffers *step = buffers_at(p, p->n_read);
    uint64_t since_ns = clock_mono_ns();
    int status = 0;

    if (!p->store->ops->prefetch || p->n_read > p->n_fetched || p->n_read >= p->n_allowed ||
        !data_loader_is_ready(p->loader))
        return 0;
    status = data_loader_acquire(p->loader, &step->batch, err);
    if (status || !step->batch)
        return 0; /* the loader reports it again in its turn */
    p->n_read++;
    status = model_tables_prefetch(p->tables, step, err);
    add_time_since(&p->fetch_ns, since_ns);
    return status;
}

static int next_here(struct pipeline *p, struct err *err)
{
    int status = may_fetch(p) ? fetch_here(p, err) : 0;

    return status || p->n_fetched == p->n_computed ? status : announce_next(p, err);
}

/* Has everything been delivered that is to be fetched? */
static bool is_drained(const struct pipeline *p)
{
    bool all_fetched = p->n_fetched == p->n_allowed || (p->ended && p->n_fetched == p->n_read);

    return all_fetched && !p->n_fetching && p->n_delivered == p->n_fetched;
}

static int next_of_thread(struct pipeline *p, struct err *err)
{
    int status;

    pthread_mutex_lock(&p->lock);
    while (!p->failure.status && p->n_fetched == p->n_computed && !is_drained(p) &&
           !stop_signal_asked(p->stop))
        wait_for_change(p);
    status = get_failure(p, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* The next fetched batch, if there is one, becomes the caller's. */
static struct step_buffers *acquire(struct pipeline *p)
{
    struct step_buffers *step = NULL;

    pthread_mutex_lock(&p->lock);
    if (p->n_fetched > p->n_acquired)
        step = buffers_at(p, p->n_acquired++);
    pthread_mutex_unlock(&p->lock);
    if (step)
        step->since_ns = clock_mono_ns();
    return step;
}

int pipeline_next(struct pipeline *p, struct step_buffers **ret, struct err *err)
{
    int status;

    assert(p->n_acquired == p->n_computed);
    status = p->threaded ? next_of_thread(p, err) : next_here(p, err);
    *ret = status ? NULL : acquire(p);
    return status;
}

struct step_buffers *pipeline_ready(struct pipeline *p)
{
    return acquire(p);
}

static int deliver_here(struct pipeline *p, struct err *err)
{
    struct step_buffers *step = buffers_at(p, p->n_delivered);
    int status = deliver(p, step, err);

    if (status)
        return status;
    count_delivered(p, step);
    data_loader_release(p->loader);
    return 0;
}

/* Time that two batches were under way together counts once. */
static void count_computed(struct pipeline *p, struct step_buffers *step)
{
    const uint64_t now_ns = clock_mono_ns();

    if (step->since_ns < p->computed_ns)
        step->since_ns = p->computed_ns;
    p->computed_ns = now_ns;
    step->compute_ns = now_ns - step->since_ns;
    add_time_since(&p->compute_ns, step->since_ns);
}

int pipeline_done(struct pipeline *p, struct err *err)
{
    int status;

    assert(p->n_computed < p->n_acquired);
    count_computed(p, buffers_at(p, p->n_computed));
    pthread_mutex_lock(&p->lock);
    p->n_computed++;
    pthread_cond_broadcast(&p->changed);
    status = get_failure(p, err);
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

/* The store resumes only when no stage is at work: nothing of the old incarnation may reach the
 * servers under the new one. */
uint64_t pipeline_restart(struct pipeline *p)
{
    uint64_t clock, resumed_at;

    pthread_mutex_lock(&p->lock);
    while (p->n_fetching || p->delivering)
        pthread_cond_wait(&p->changed, &p->lock);
    end_prefetch(p);
    resumed_at = p->store->ops->resume(p->store);
    model_tables_restart(p->tables);
    clock = p->first_clock + p->n_delivered;
    if (clock < resumed_at)
        clock = resumed_at;
    p->failure.status = 0;
    p->deliver_failed = false;
    p->n_claimed = p->n_fetched = p->n_acquired = p->n_computed = p->n_delivered;
    p->first_clock = clock - p->n_delivered;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return clock;
}

int pipeline_end(struct pipeline *p, struct err *err)
{
    if (p->threaded)
        end_threads(p);
    end_prefetch(p);
    atomic_fetch_add(&p->read_ns, data_loader_busy_ns(p->loader));
    p->loader = NULL;
    return get_failure(p, err);
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

void pipeline_stages(struct pipeline *p, struct stage_times *ret)
{
    *ret = (struct stage_times){ 0 };
    ret->ns[STAGE_READ] = p->read_ns + (p->loader ? data_loader_busy_ns(p->loader) : 0);
    ret->ns[STAGE_FETCH] = p->fetch_ns / p->n_fetchers;
    ret->ns[STAGE_COMPUTE] = p->compute_ns;
    ret->ns[STAGE_DELIVER] = p->deliver_ns;
}
