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
};

void wal_pace_init(struct wal_pace *p, uint64_t max_bytes);

/* A record of n_bytes is in the backlog, which now has backlog_bytes. */
void wal_pace_append(struct wal_pace *p, uint64_t now_ms, uint64_t n_bytes,
                     uint64_t backlog_bytes);

/* So long after now_ms the next push may come; 0: at once. */
uint64_t wal_pace_wait_ms(const struct wal_pace *p, uint64_t now_ms);

/* --- while the disk is the bound --- */

/* Sums since the start. */
struct wal_bound_sample {
    uint64_t ms;               /* when */
    uint64_t stored_bytes;     /* the disk has taken */
    uint64_t held_ms;          /* while the shard took no push, for the disk's sake */
    uint64_t disk_bytes_per_s; /* the disk's speed in its last syncs (wal_portion.h); no sum */
};

/* The begin and the end of pacing, for people: not each short wait, and at most one line a minute. */
struct wal_bound {
    bool is_on;       /* pushes have waited, since since_ms and last at last_ms */
    bool is_reported; /* and the log's reader knows */
    uint64_t since_ms, last_ms, reported_ms;
    struct wal_bound_sample tick;       /* the last one, */
    struct wal_bound_sample last;       /* and of the last wait; */
    struct wal_bound_sample from, next; /* `from` is 10 to 20 s before it, or its begin */
};

/* Of the last seconds of it, in bytes as the disk has them. */
struct wal_bound_rates {
    uint64_t ms, held_ms;
    uint64_t bytes_per_s;        /* that the disk took */
    uint64_t needed_bytes_per_s; /* that it would have taken if pushes had never waited, */
    bool is_least;               /* or more than that */
};

enum wal_bound_change { WAL_BOUND_UNCHANGED, WAL_BOUND_BEGAN, WAL_BOUND_ENDED };

enum wal_bound_waits { WAL_BOUND_NO_PUSH_WAITS, WAL_BOUND_PUSHES_WAIT };

/* Called a few times a second; `waits`: whether a push waits for the disk, or has since the last call. Returns the
 * change to report. */
enum wal_bound_change wal_bound_tick(struct wal_bound *b, const struct wal_bound_sample *now,
                                     enum wal_bound_waits waits);

/* False: pushes have not waited for long enough to say it. */
bool wal_bound_rates(const struct wal_bound *b, struct wal_bound_rates *ret);

#endif
