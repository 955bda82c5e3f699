#include "server/wal/wal_pace.h"

#define NS_PER_MS UINT64_C(1000000)
#define MS_PER_S UINT64_C(1000)
/* Until the first sync tells: fast disks have told before the backlog is large, so slow ones are meant. */
#define UNKNOWN_BYTES_PER_S (UINT64_C(100) << 20)
#define FACTOR_MAX 16.0          /* of the delay: a disk that stands still is left to FULL */
#define LATE_NS (10 * NS_PER_MS) /* a turn that comes so late is made good by a burst */
#define WAIT_NS_MAX \
    (1000 * NS_PER_MS) /* beyond it FULL decides: a speed measured long ago may not hold */
#define BOUND_REPORT_MS UINT64_C(1000) /* waits go on for so long before a line is due */
#define BOUND_OVER_MS UINT64_C(5000)   /* without a wait: the disk keeps up */
#define BOUND_EVERY_MS UINT64_C(60000)
#define BOUND_RATES_MS UINT64_C(10000)
#define MEASURED_MS \
    UINT64_C(5000) /* a sync takes a good part of a second: a mean counts from here on */
#define HELD_SHARE_MAX 0.9 /* beyond it the need cannot be told */

void wal_pace_init(struct wal_pace *p, uint64_t max_bytes)
{
    *p = (struct wal_pace){ .low_bytes = max_bytes / 4, .max_bytes = max_bytes };
}

static double delay_factor(const struct wal_pace *p, uint64_t backlog_bytes)
{
    double over = (double)(backlog_bytes - p->low_bytes), left;

    if (backlog_bytes >= p->max_bytes)
        return FACTOR_MAX;
    left = (double)(p->max_bytes - backlog_bytes);
    return over < FACTOR_MAX * left ? over / left : FACTOR_MAX;
}

void wal_pace_append(struct wal_pace *p, uint64_t now_ms, uint64_t n_bytes,
                     uint64_t backlog_bytes)
{
    uint64_t speed = p->bytes_per_s ? p->bytes_per_s : UNKNOWN_BYTES_PER_S;
    uint64_t now_ns = now_ms * NS_PER_MS;

    if (backlog_bytes <= p->low_bytes)
        return;
    if (p->next_ns + LATE_NS < now_ns)
        p->next_ns = now_ns - LATE_NS;
    p->next_ns +=
        (uint64_t)((double)n_bytes * 1e9 / (double)speed * delay_factor(p, backlog_bytes));
    if (p->next_ns > now_ns + WAIT_NS_MAX)
        p->next_ns = now_ns + WAIT_NS_MAX;
}

uint64_t wal_pace_wait_ms(const struct wal_pace *p, uint64_t now_ms)
{
    uint64_t now_ns = now_ms * NS_PER_MS;

    return p->next_ns <= now_ns ? 0 : (p->next_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS;
}

/* --- while the disk is the bound --- */

static void note_wait(struct wal_bound *b, const struct wal_bound_sample *now)
{
    if (!b->is_on) {
        b->since_ms = now->ms;
        b->from = b->next = b->tick.ms ? b->tick : *now; /* it has waited since then */
    } else if (now->ms - b->next.ms >= BOUND_RATES_MS) {
        b->from = b->next;
        b->next = *now;
    }
    b->is_on = true;
    b->last_ms = now->ms;
    b->last = *now;
}

enum wal_bound_change wal_bound_tick(struct wal_bound *b, const struct wal_bound_sample *now,
                                     enum wal_bound_waits waits)
{
    bool was_reported = b->is_reported;

    if (waits == WAL_BOUND_PUSHES_WAIT)
        note_wait(b, now);
    b->tick = *now;
    if (b->is_on && now->ms - b->last_ms >= BOUND_OVER_MS) {
        b->is_on = b->is_reported = false;
        return was_reported ? WAL_BOUND_ENDED : WAL_BOUND_UNCHANGED;
    }
    if (!b->is_on || was_reported || b->last_ms - b->since_ms < BOUND_REPORT_MS ||
        (b->reported_ms && now->ms - b->reported_ms < BOUND_EVERY_MS))
        return WAL_BOUND_UNCHANGED;
    b->is_reported = true;
    b->reported_ms = now->ms;
    return WAL_BOUND_BEGAN;
}

/* Pushes came only while they were not held back: at that rate all the time they would need more. */
bool wal_bound_rates(const struct wal_bound *b, struct wal_bound_rates *ret)
{
    double held;

    ret->ms = b->last.ms - b->from.ms;
    if (!b->is_on || ret->ms < BOUND_REPORT_MS)
        return false;
    ret->held_ms = b->last.held_ms - b->from.held_ms;
    ret->bytes_per_s = b->last.disk_bytes_per_s;
    if (ret->ms >= MEASURED_MS)
        ret->bytes_per_s = (b->last.stored_bytes - b->from.stored_bytes) * MS_PER_S / ret->ms;
    held = (double)ret->held_ms / (double)ret->ms;
    ret->is_least = held > HELD_SHARE_MAX;
    ret->needed_bytes_per_s =
        (uint64_t)((double)ret->bytes_per_s / (1 - (ret->is_least ? HELD_SHARE_MAX : held)));
    return true;
}
