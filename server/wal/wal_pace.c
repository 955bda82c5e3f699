#include "server/wal/wal_pace.h"

#define NS_PER_MS UINT64_C(1000000)
#define MS_PER_S UINT64_C(1000)
/* Until the first sync tells: fast disks have told before the backlog is large, so slow ones are meant. */
#define UNKNOWN_BYTES_PER_S (UINT64_C(100) << 20)
#define FACTOR_MAX 16.0          /* of the delay: a disk that stands still is left to FULL */
#define LATE_NS (10 * NS_PER_MS) /* a turn that comes so late is made good by a burst */
#define WAIT_NS_MAX \
    (1000 * NS_PER_MS) /* beyond it FULL decides: a speed measured long ago may not hold */
#define PAUSE_MS 20u   /* without a record: workers did something else meanwhile */
#define BOUND_REPORT_MS UINT64_C(1000) /* waits go on for so long before a line is due */
#define BOUND_OVER_MS UINT64_C(5000)   /* without a wait: the disk keeps up */
#define BOUND_EVERY_MS UINT64_C(60000)

void wal_pace_init(struct wal_pace *p, uint64_t max_bytes)
{
    *p = (struct wal_pace){ .low_bytes = max_bytes / 4, .max_bytes = max_bytes };
}

/* What workers push when nothing holds them up: the bytes that came while the backlog grew. */
static void note_growth(struct wal_pace *p, uint64_t now_ms, uint64_t backlog_bytes)
{
    bool is_new = backlog_bytes <= p->low_bytes / 2;

    if (is_new || (!p->is_over && now_ms - p->last_ms > PAUSE_MS)) {
        p->growth_bytes = p->appended_bytes;
        p->growth_at_ms = now_ms;
        p->is_over = p->is_over && !is_new;
    } else if (backlog_bytes > p->low_bytes && !p->is_over) {
        uint64_t ms = now_ms > p->growth_at_ms ? now_ms - p->growth_at_ms : 1;

        p->pushed_bytes_per_s = (p->appended_bytes - p->growth_bytes) * MS_PER_S / ms;
        p->is_over = true;
    }
    p->last_ms = now_ms;
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

    p->appended_bytes += n_bytes;
    note_growth(p, now_ms, backlog_bytes);
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

void wal_bound_note(struct wal_bound *b, uint64_t now_ms)
{
    if (!b->is_on)
        b->since_ms = now_ms;
    b->is_on = true;
    b->last_ms = now_ms;
}

enum wal_bound_change wal_bound_tick(struct wal_bound *b, uint64_t now_ms)
{
    bool was_reported = b->is_reported;

    if (b->is_on && now_ms - b->last_ms >= BOUND_OVER_MS) {
        b->is_on = b->is_reported = false;
        return was_reported ? WAL_BOUND_ENDED : WAL_BOUND_UNCHANGED;
    }
    if (!b->is_on || was_reported || b->last_ms - b->since_ms < BOUND_REPORT_MS ||
        (b->reported_ms && now_ms - b->reported_ms < BOUND_EVERY_MS))
        return WAL_BOUND_UNCHANGED;
    b->is_reported = true;
    b->reported_ms = now_ms;
    return WAL_BOUND_BEGAN;
}
