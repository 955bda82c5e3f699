/*
 * The pushes to one shard that it has not acknowledged, in the order of their numbers.
 *
 *     last_acked | last_acked + 1 ... last_seq |      first = last_acked + 1 unless empty
 */
#ifndef WORKER_CLIENT_BACKLOG_H
#define WORKER_CLIENT_BACKLOG_H

#include "worker/client/parcel.h"

struct backlog {
    struct parcel *first, *last; /* owned */
    uint64_t last_acked, last_seq;
};

/* Numbers the push, unless it has that number already, and takes it. */
void backlog_add(struct backlog *b, struct parcel *push);

/* Takes out the first push, now the caller's, and counts it as acknowledged. NULL when empty.
 */
struct parcel *backlog_ack(struct backlog *b);

/* Drops everything; the next push is number 1. */
void backlog_clear(struct backlog *b);

#endif
