#include "server/due.h"

#define RETRY_MS 5000u

static uint64_t log_bytes(const struct due *d)
{
    uint64_t sum = d->found_bytes;

    for (uint32_t i = 0; i < d->settings->shards; i++)
        sum += shard_thread_log_bytes(d->shards[i]);
    return sum;
}

/* What a log lacks is safe again once it is in a checkpoint. */
static bool has_gap(const struct due *d)
{
    for (uint32_t i = 0; i < d->settings->shards; i++)
        if (shard_thread_log_has_gap(d->shards[i]))
            return true;
    return false;
}

/* The logs are short again once a checkpoint has succeeded, whoever wished for it. */
static void note_success(struct due *d, const struct keeper *k) ON_MAIN
{
    uint64_t n_done = keeper_record(k)->n_done;

    if (n_done != d->n_done)
        d->log_bytes = d->tried_bytes;
    d->n_done = n_done;
}

bool due_now(struct due *d, const struct keeper *k, uint64_t now_ms)
{
    uint64_t every_ms = d->settings->checkpoint_every_ms, n_bytes = log_bytes(d);

    if (!keeper_is_idle(k))
        return false;
    note_success(d, k);
    d->tried_bytes = n_bytes;
    if (every_ms && keeper_is_due(k, d->since_ms, every_ms, now_ms))
        return true;
    if (now_ms < d->tried_ms + RETRY_MS ||
        !(has_gap(d) || n_bytes >= d->log_bytes + d->settings->log_max_bytes))
        return false;
    d->tried_ms = now_ms;
    return true;
}
