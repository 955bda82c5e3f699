#include "worker/pipeline_state.h"

#include <time.h>

#define LOOK_MS 100u /* how often a wait looks for a stop */

uint64_t pipeline_state_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pipeline_state_spend(_Atomic uint64_t *stage_ns, uint64_t since_ns)
{
    atomic_fetch_add_explicit(stage_ns, pipeline_state_now_ns() - since_ns,
                              memory_order_relaxed);
}

struct slot *pipeline_state_slot(struct pipeline *p, uint64_t number)
{
    return &p->slots[number % p->n_slots];
}

/* ---- the stages, without the lock ---- */

int pipeline_state_fetch(struct pipeline *p, struct slot *slot, uint64_t clock, struct err *err)
{
    uint64_t since_ns = pipeline_state_now_ns();
    int status;

    slot->clock = clock;
    status = tables_pull(p->tables, slot, TABLES_STEP, err);
    pipeline_state_spend(&p->fetch_ns, since_ns);
    return status;
}

int pipeline_state_deliver(struct pipeline *p, struct slot *slot, struct err *err)
{
    uint64_t since_ns = pipeline_state_now_ns();
    int status = tables_push(p->tables, slot, err);

    pipeline_state_spend(&p->deliver_ns, since_ns);
    return status;
}

/* ---- under the lock ---- */

void pipeline_state_keep_failure(struct pipeline *p, int status, const struct err *err)
{
    if (p->failure.status)
        return;
    p->failure = *err;
    p->failure.status = status;
}

/* It stays, until the restart if it is PS_EFENCED: the stages begin nothing new. */
int pipeline_state_tell_failure(struct pipeline *p, struct err *err)
{
    int status = p->failure.status;

    if (status)
        *err = p->failure;
    return status;
}

bool pipeline_state_may_fetch(const struct pipeline *p)
{
    return !p->failure.status && p->n_fetched - p->n_delivered < p->n_permits &&
           p->n_fetched < p->n_allowed && (p->n_fetched < p->n_read || !p->ended);
}

void pipeline_state_count_delivered(struct pipeline *p, const struct slot *slot)
{
    p->n_steps++;
    p->n_samples += slot->batch->n;
    p->n_delivered++;
}

void pipeline_state_wait_a_little(struct pipeline *p)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&p->changed, &p->lock, &until);
}
