/*
 * The pulls that a shard has not answered, in the order in which they were asked for. A shard parks few pulls of one
 * connection, and refuses those beyond (proto/README.md, -105). So a part of them is sent, and the rest is held back:
 *
 *     first ... sent on this connection ... | next ... held back ... last
 *
 * Answers come in any order. A pull that is dropped after it was sent stays until its answer or the connection's end,
 * as the shard still parks it.
 */
#ifndef WORKER_CLIENT_PULL_QUEUE_H
#define WORKER_CLIENT_PULL_QUEUE_H

#include "worker/client/request.h"

#define PULL_QUEUE_PARKED_MAX 16u /* of a worker: as many as a shard parks for one connection */
#define PULL_QUEUE_READ_MAX \
    256u /* of a reader, which is never parked: so that its replies do not pile up */

/* Zeroed: empty. */
struct pull_queue {
    struct request *first, *last; /* owned */
    struct request *next;         /* NULL: all are sent */
    uint32_t n_sent;              /* of them, and their keys' bytes */
    size_t sent_bytes;
};

/* Takes ownership. */
void pull_queue_add(struct pull_queue *q, struct request *pull);

/* The next one to send, if less than n_max are sent and the keys of all together have max_bytes or less; one alone may
 * have more. NULL: none is to be sent now. */
struct request *pull_queue_next(const struct pull_queue *q, uint32_t n_max, size_t max_bytes);

/* q->next is being sent with this number. */
void pull_queue_sent(struct pull_queue *q, uint64_t request_id);

/* The one that was sent with this number on this connection, or NULL. */
struct request *pull_queue_find(const struct pull_queue *q, uint64_t request_id);

/* The oldest that somebody waits for, or NULL. */
const struct request *pull_queue_oldest(const struct pull_queue *q);

/* It is the caller's then. */
void pull_queue_remove(struct pull_queue *q, struct request *pull);

/* Nobody waits any more for those whose pull has ended (pull.h). */
void pull_queue_drop_ended(struct pull_queue *q);

/* The connection has ended: none is sent. */
void pull_queue_reset(struct pull_queue *q);

/* Frees all. */
void pull_queue_clear(struct pull_queue *q);

#endif
