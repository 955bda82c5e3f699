/*
 * Replies that promise something: that a push, a join, a table or a goodbye has happened and will
 * have happened after a crash, too. With --durability fsync they wait here, in the order of the
 * events, until the push log is on the disk up to their event; otherwise they go at once.
 *
 *     event -> acks_note() -> acks_send() -> waits -> acks_reach() -> sent
 *                                            dropped with its connection: the peer asks again
 *
 * A reply waits for every event that came before it, not for its own alone: an answer that tells
 * what was judged earlier (a repeated push, the last number of a worker that comes back) promises
 * that as well.
 */
#ifndef SERVER_ACKS_H
#define SERVER_ACKS_H

#include <stdbool.h>

#include "common/pile.h"
#include "common/thread_role.h"
#include "server/admin/report.h"
#include "server/net/connection.h"

/* Of replies that wait. Who asks for more while the disk is away is hung up on, and asks again. */
#define ACKS_BYTES_MAX (UINT64_C(64) << 20)

struct ack;

struct acks {
    uint64_t appended, acknowledged; /* numbers of records; equal: nothing is waited for */
    struct ack *first, **last;       /* owned: waiting, by number */
    struct pile spares;              /* owned: sent, for the next ones */
    uint64_t n_waiting, since_ns;    /* since_ns: of the first */
    uint64_t waiting_bytes;
    bool
        is_full; /* the log takes no event now, as the disk is slower than they: they wait, unread */
};

/* What a reply is about, for its latency: first byte of the request complete -> reply sent. */
struct ack_timing {
    struct report_requests *requests; /* borrowed, for as long as *acks lives */
    uint64_t start_ns;
};

void acks_init(struct acks *a);
void acks_deinit(struct acks *a);

/* The log has this record now: replies from here on wait for it. */
static inline void acks_note(struct acks *a, uint64_t number)
{
    a->appended = number;
}

/* Sends the frame, now or later; takes it. Not 0: the connection cannot go on. */
int acks_send(struct acks *a, struct connection *c, struct buf *frame,
              const struct ack_timing *timing) ON_SHARD MUST_CHECK;

/* All records up to `acknowledged` are as safe as was asked for. */
void acks_reach(struct acks *a, uint64_t acknowledged) ON_SHARD;

/* How long the first in line has waited. */
uint64_t acks_waited_ms(const struct acks *a);

/* The connection is gone, with all that it waits for. */
void acks_drop(struct acks *a, const struct connection *c) ON_SHARD;

#endif
