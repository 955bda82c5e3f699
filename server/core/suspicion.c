#include "server/core/suspicion.h"

bool suspicion_lease_is_over(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    return w->state == WORKER_LIVE && now_ms > w->last_seen_ms &&
           now_ms - w->last_seen_ms > lease_ms;
}

static bool is_heard(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    return w->state == WORKER_LIVE && !w->is_suspected &&
           !suspicion_lease_is_over(w, lease_ms, now_ms);
}

static bool is_relay(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    return w->relays && is_heard(w, lease_ms, now_ms);
}

/* Or it is from before a restart of this shard, and heard of without having joined again: it may relay then. */
static bool may_relay(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    return (w->relays || !w->is_known) && is_heard(w, lease_ms, now_ms);
}

bool suspicion_has_relay(const struct job *job, uint32_t lease_ms, uint64_t now_ms)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (may_relay(&job->workers[i], lease_ms, now_ms))
            return true;
    return false;
}

bool suspicion_is_deserted(const struct job *job, uint32_t lease_ms, uint64_t now_ms)
{
    bool any = false;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        if (is_heard(w, lease_ms, now_ms))
            return false;
        any = any || (w->state == WORKER_LIVE && (w->relays || !w->is_known));
    }
    return any;
}

bool suspicion_has(const struct witnesses *all, uint32_t rank)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (all->ranks[i] == rank)
            return true;
    return false;
}

bool suspicion_add(struct witnesses *all, uint32_t rank)
{
    if (all->n == WITNESSES_MAX || suspicion_has(all, rank))
        return false;
    all->ranks[all->n++] = rank;
    return true;
}

/* Two, or one if nobody else is there, or will come, that could say it. */
static uint32_t n_needed(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->job->n_workers && n < WITNESSES_MAX; i++) {
        const struct worker *other = &w->job->workers[i];

        n += other != w &&
             (other->state == WORKER_EXPECTED || may_relay(other, lease_ms, now_ms));
    }
    return n;
}

bool suspicion_is_believed(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    return w->reporters.n > 0 &&
           w->reporters.n + w->doubts_itself >= n_needed(w, lease_ms, now_ms);
}

bool suspicion_is_agreed(const struct worker *w, uint32_t lease_ms, uint64_t now_ms)
{
    return w->agreed.n == WITNESSES_MAX ||
           (w->agreed.n > 0 && suspicion_lease_is_over(w, lease_ms, now_ms));
}

bool suspicion_is_private(const struct worker *w)
{
    return !w->is_reported && w->reporters.n == 0 && w->agreed.n == 0;
}

const struct worker *suspicion_silent_relay(const struct worker *w, uint32_t lease_ms,
                                            uint64_t now_ms)
{
    for (uint32_t i = 0; i < w->job->n_workers; i++) {
        const struct worker *other = &w->job->workers[i];

        if (other != w && is_relay(other, lease_ms, now_ms) && !suspicion_has(&w->agreed, i))
            return other;
    }
    return NULL;
}

void suspicion_clear(struct worker *w)
{
    w->is_suspected = w->is_reported = w->doubts_itself = w->is_given_up = false;
    w->suspected_ms = w->given_up_ms = 0;
    w->reporters = w->agreed = (struct witnesses){ 0 };
}
