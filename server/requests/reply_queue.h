/*
 * Replies that promise durability: a push, a join, a table or a leave has happened, and will have happened after a
 * crash, too. With --durability fsync they wait here, in the order of the events, until the write-ahead log is on the
 * disk up to their event; otherwise they are sent at once.
 *
 *     event -> reply_queue_note() -> reply_queue_send() -> waits -> reply_queue_release() -> sent
 *                                            dropped with its connection: the peer asks again
 *
 * With a standby in sync (server/replication/sync.h) they wait for the standby's acknowledgement, too, whatever
 * --durability says.
 *
 * A reply waits for every event before it, not only for its own: a reply that repeats an earlier result (of a repeated
 * push, or the last number of a worker that comes back) promises that result as well.
 */
#ifndef SERVER_REQUESTS_REPLY_QUEUE_H
#define SERVER_REQUESTS_REPLY_QUEUE_H

#include <stdbool.h>

#include "common/clock.h"
#include "common/free_list.h"
#include "common/thread_role.h"
#include "server/admin/stats.h"
#include "server/net/connection.h"

/* Of replies that wait, as the memory they take. Beyond it the connection that has most of them is closed, and its
 * client asks again. */
#define REPLY_QUEUE_BYTES_MAX (UINT64_C(64) << 20)

/* As long as less waits, a reply stays in the loop's buffer that it was made in, so pushes usually allocate nothing.
 * From here on a small one is copied to memory of its own size and its buffer goes back to the loop, unless there is no
 * memory for that. */
#define REPLY_QUEUE_LONG_BYTES (REPLY_QUEUE_BYTES_MAX / 16)

struct queued_reply;

/* Pushes that wait for the log, because it is full or they come faster than its disk takes them. */
struct push_waits {
    uint64_t n_now;           /* wait now */
    uint64_t n_over, over_ns; /* wait no longer, and have waited so long in all */
};

struct reply_queue {
    uint64_t appended, acknowledged; /* numbers of records; equal: nothing is waited for */
    uint64_t by_log,
        by_standby; /* acknowledged is the smaller one; UINT64_MAX: nothing is waited for */
    uint64_t
        gone; /* the newest record by which a worker was declared gone while a standby follows */
    /* Until then, by clock_mono_ms(), no other psd can serve these shards; UINT64_MAX: none can at all. */
    uint64_t alone_until_ms;
    struct queued_reply *first, **last; /* owned: waiting, by number */
    struct free_list pool;              /* owned: sent, for the next ones */
    uint64_t n_waiting, since_ns;       /* since_ns: of the first */
    uint64_t waiting_bytes;
    bool
        is_full; /* no event now, as the disk or the standby is slower, or for a switch: requests wait, unread */
    bool is_paced; /* it takes no push for a moment (wal_pace.h): pushes wait, unread */
    uint64_t full_since_ms; /* monotonic: when is_full was set */
    struct push_waits push_waits;
};

/* The request of a reply, for its latency: from the first byte of the complete request to the reply's sending. */
struct reply_timing {
    struct stats_requests *requests; /* borrowed, for as long as *queue lives */
    uint64_t start_ns;
};

void reply_queue_init(struct reply_queue *q);
void reply_queue_deinit(struct reply_queue *q);

/* The log has this record now: replies from here on wait for it. */
static inline void reply_queue_note(struct reply_queue *q, uint64_t number)
{
    q->appended = number;
}

/* Sends the frame, now or later; takes it. While it waits, it counts with what the connection holds. Not 0: the
 * connection cannot go on. */
int reply_queue_send(struct reply_queue *q, struct connection *c, struct bytes *frame,
                     const struct reply_timing *timing) ON_SHARD MUST_CHECK;

/* All records up to `acknowledged` are as durable as --durability demands: sends their replies. */
void reply_queue_release(struct reply_queue *q, uint64_t acknowledged) ON_SHARD;

/* The standby has all records up to this one; UINT64_MAX: no reply waits for it. */
void reply_queue_set_standby(struct reply_queue *q, uint64_t acknowledged) ON_SHARD;

/* A worker is gone as of this record. */
static inline void reply_queue_note_gone(struct reply_queue *q, uint64_t number)
{
    q->gone = number;
}

/* False while the standby may not know of a worker that is gone: the others' pulls wait for that. Else they could see a
 * clock that was combined without its push, and a promoted standby would combine it with that push. */
static inline bool reply_queue_shows_gone(const struct reply_queue *q)
{
    return q->gone <= q->by_standby;
}

/* False while another psd may be the primary by now: pulls wait, as what is here may be old. Not by the loop's time:
 * this process may have stood still within a turn. */
static inline bool reply_queue_is_current(const struct reply_queue *q)
{
    return q->alone_until_ms == UINT64_MAX || clock_mono_ms() <= q->alone_until_ms;
}

/* True if the log lets a push begin. */
static inline bool reply_queue_takes_pushes(const struct reply_queue *q)
{
    return !q->is_full && !q->is_paced;
}

/* The time that the first queued reply has waited. */
uint64_t reply_queue_waited_ms(const struct reply_queue *q);

/* The connection is gone, with all that it waits for. */
void reply_queue_drop(struct reply_queue *q, const struct connection *c) ON_SHARD;

#endif
