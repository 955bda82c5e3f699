#include "worker/pipeline_threads.h"

#include <errno.h>
#include <string.h>

static bool may_deliver(const struct pipeline *p)
{
    return p->n_delivered < p->n_computed && !p->deliver_failed &&
           p->failure.status != PS_EFENCED;
}

/* Takes the next batch from the feed, unless it is there from before a restart. The lock is held
 * when it is called and when it returns. */
static int read_batch(struct pipeline *p, struct err *err)
{
    struct slot *slot = pipeline_state_slot(p, p->n_fetched);
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
    status = pipeline_state_fetch(p, pipeline_state_slot(p, number), clock, err);
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
        if (!pipeline_state_may_fetch(p)) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        p->fetching = true;
        status = read_batch(p, &err);
        if (!status && !p->stopping)
            status = fetch_batch(p, &err);
        if (status && status != -ECANCELED)
            pipeline_state_keep_failure(p, status, &err);
        p->fetching = false;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void deliver_next(struct pipeline *p)
{
    struct slot *slot = pipeline_state_slot(p, p->n_delivered);
    struct err err = { 0 };
    int status;

    p->delivering = true;
    pthread_mutex_unlock(&p->lock);
    status = pipeline_state_deliver(p, slot, &err);
    pthread_mutex_lock(&p->lock);
    p->delivering = false;
    if (status) {
        p->deliver_failed = true;
        pipeline_state_keep_failure(p, status, &err);
    } else {
        pipeline_state_count_delivered(p, slot);
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

static void stop_threads(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

int pipeline_threads_start(struct pipeline *p, struct err *err)
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

/* The fetch thread may be in a pull that a shard has parked. */
void pipeline_threads_end(struct pipeline *p)
{
    stop_threads(p);
    pthread_mutex_lock(&p->lock);
    while (p->fetching) {
        if (p->store->ops->cancel)
            p->store->ops->cancel(p->store);
        pipeline_state_wait_a_little(p);
    }
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->fetcher, NULL);
    pthread_join(p->deliverer, NULL);
}
