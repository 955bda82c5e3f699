#include "server/due.h"

#define GAP_RETRY_MS 5000u

static uint64_t log_bytes(const struct due *d)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < d->settings->shards; i++)
        sum += shard_thread_log_bytes(d->shards[i]);
    return sum;
}

/* What a log lacks is safe again once it is in a checkpoint. */
static bool has_gap(struct due *d, uint64_t now_ms)
{
    if (now_ms < d->gap_tried_ms + GAP_RETRY_MS)
        return false;
    for (uint32_t i = 0; i < d->settings->shards; i++)
        if (shard_thread_log_has_gap(d->shards[i])) {
            d->gap_tried_ms = now_ms;
            return true;
        }
    return false;
}

bool due_now(struct due *d, const struct keeper *k, uint64_t now_ms)
{
    uint64_t every_ms = d->settings->checkpoint_every_ms, n_bytes = log_bytes(d);

    if (!keeper_is_idle(k))
        return false;
    if (n_bytes < d->log_bytes + d->settings->log_max_bytes && !has_gap(d, now_ms) &&
        !(every_ms && keeper_is_due(k, d->since_ms, every_ms, now_ms)))
        return false;
    d->log_bytes = n_bytes;
    return true;
}
