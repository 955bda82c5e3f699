/*
 * Pacing of pushes while the log's disk is slower than pushes arrive. Without it pushes would run until the queue is
 * full and stand still until half of it is on the disk. Paced pushes are spread over time, at the disk's measured
 * speed:
 *
 *     backlog b      of what the log holds in memory                a push of n bytes delays the next one by
 *     b <= low       a quarter of the queue: a burst                nothing
 *     low < b < max  n / speed * (b - low) / (max - b), so that b settles where that factor is 1
 *     b >= max       the queue is FULL (wal_queue.h)                until FULL ends
 *
 * A rule of time and bytes, without a clock or a lock. Below `low` it costs a comparison.
 */
#ifndef SERVER_WAL_WAL_PACE_H
#define SERVER_WAL_WAL_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct wal_pace {
    uint64_t low_bytes, max_bytes;
    uint64_t bytes_per_s; /* of records that the disk takes; 0: not known yet */
    uint64_t next_ns;     /* on the caller's clock: no push before it */
    /* The last time that the backlog grew to low_bytes: how fast pushes came before they were delayed. */
    uint64_t appended_bytes, last_ms; /* so far; when the last record came */
    uint64_t growth_bytes,
        growth_at_ms; /* when the backlog began to grow: appended_bytes, and the time */
    bool is_over;     /* it has been above low_bytes since */
    uint64_t pushed_bytes_per_s; /* 0: it never was */
};

void wal_pace_init(struct wal_pace *p, uint64_t max_bytes);

/* A record of n_bytes is in the backlog, which now has backlog_bytes. */
void wal_pace_append(struct wal_pace *p, uint64_t now_ms, uint64_t n_bytes,
                     uint64_t backlog_bytes);

/* So long after now_ms the next push may come; 0: at once. */
uint64_t wal_pace_wait_ms(const struct wal_pace *p, uint64_t now_ms);

/* --- while the disk is the bound --- */

/* The begin and the end of pacing, for people: not each short wait, and at most one line a minute. */
struct wal_bound {
    bool is_on;       /* pushes have waited, since since_ms and last at last_ms */
    bool is_reported; /* and the log's reader knows */
    uint64_t since_ms, last_ms, reported_ms;
};

enum wal_bound_change { WAL_BOUND_UNCHANGED, WAL_BOUND_BEGAN, WAL_BOUND_ENDED };

/* A push waits for the disk now. */
void wal_bound_note(struct wal_bound *b, uint64_t now_ms);

/* Called a few times a second. Returns the change to report. */
enum wal_bound_change wal_bound_tick(struct wal_bound *b, uint64_t now_ms);

#endif
