#include "server/replication/sync.h"

#include <assert.h>

const char *sync_state_name(enum sync_state state)
{
    static const char *const names[] = { "out of sync", "joining", "joining", "in sync",
                                         "leaving" };

    return (size_t)state < COUNT_OF(names) ? names[state] : "unknown";
}

void sync_init(struct sync *s, uint64_t patience_ms, bool in_sync, uint64_t now_ms)
{
    *s = (struct sync){ .state = in_sync ? SYNC_IN : SYNC_OUT,
                        .since_ms = now_ms,
                        .patience_ms = patience_ms };
}

static void enter(struct sync *s, enum sync_state state, uint64_t now_ms)
{
    s->state = state;
    s->since_ms = now_ms;
}

static bool is_silent(const struct sync *s, const struct sync_shard *shard, uint64_t now_ms)
{
    const uint64_t heard_ms = shard->heard_ms > s->since_ms ? shard->heard_ms : s->since_ms;

    return now_ms > heard_ms && now_ms - heard_ms > s->patience_ms;
}

static bool is_lost(const struct sync *s, const struct sync_shard *shards, uint32_t n,
                    bool is_followed, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n && is_followed; i++)
        if (!shards[i].is_connected || is_silent(s, &shards[i], now_ms))
            return true;
    return !is_followed;
}

static bool has_caught_up(const struct sync_shard *shards, uint32_t n, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n; i++)
        if (!shards[i].is_connected || !shards[i].caught_up_ms ||
            shards[i].caught_up_ms + SYNC_CAUGHT_UP_MS < now_ms)
            return false;
    return true;
}

/* All replies wait now, and the standby has what went out before. */
static bool has_joined(const struct sync_shard *shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!shards[i].is_closed || shards[i].held < shards[i].closed_at)
            return false;
    return true;
}

static enum sync_order write_order(struct sync *s, enum sync_state state, enum sync_order order,
                                   uint64_t now_ms)
{
    enter(s, state, now_ms);
    s->writes = true;
    return order;
}

enum sync_order sync_step(struct sync *s, const struct sync_shard *shards, uint32_t n,
                          bool is_followed, uint64_t now_ms)
{
    const bool lost = s->ends || is_lost(s, shards, n, is_followed, now_ms);

    if (s->writes)
        return SYNC_NOTHING;
    switch (s->state) {
    case SYNC_OUT:
        if (s->ends || !is_followed || now_ms < s->retry_ms ||
            !has_caught_up(shards, n, now_ms))
            return SYNC_NOTHING;
        enter(s, SYNC_JOINING, now_ms);
        return SYNC_CLOSE_GATES;
    case SYNC_JOINING:
        if (lost || now_ms > s->since_ms + s->patience_ms) {
            enter(s, SYNC_OUT, now_ms);
            s->retry_ms = now_ms + SYNC_RETRY_MS;
            return SYNC_OPEN_GATES;
        }
        return has_joined(shards, n) ? write_order(s, SYNC_ENTERING, SYNC_WRITE_YES, now_ms)
                                     : SYNC_NOTHING;
    case SYNC_ENTERING:
    case SYNC_IN:
        return lost ? write_order(s, SYNC_LEAVING, SYNC_WRITE_NO, now_ms) : SYNC_NOTHING;
    case SYNC_LEAVING:
        if (now_ms < s->retry_ms)
            return SYNC_NOTHING;
        /* retry_ms 0: `no` is on the disk */
        if (!s->retry_ms) {
            enter(s, SYNC_OUT, now_ms);
            return SYNC_OPEN_GATES;
        }
        return write_order(s, SYNC_LEAVING, SYNC_WRITE_NO, now_ms);
    }
    return SYNC_NOTHING;
}

bool sync_seems_lost(const struct sync *s, const struct sync_shard *shards, uint32_t n,
                     uint64_t now_ms)
{
    for (uint32_t i = 0; i < n; i++)
        if (!shards[i].is_connected || now_ms > shards[i].heard_ms + s->patience_ms / 2)
            return true;
    return false;
}

void sync_note_write(struct sync *s, int status, uint64_t now_ms)
{
    assert(s->writes);
    s->writes = false;
    s->retry_ms = status ? now_ms + SYNC_RETRY_MS : 0;
    if (s->state == SYNC_ENTERING)
        enter(s, status ? SYNC_LEAVING : SYNC_IN, now_ms);
}
