/*
 * Pulls: answered, or parked until the slower workers have caught up.
 *
 *     received -> answered               min clock is far enough
 *              -> parked -> answered     retried when a clock may have moved
 *                        -> PS_EDEADLINE with a sentence that names the worker it waited for
 *                        -> PS_EFENCED   its worker's incarnation is fenced
 *                        -> dropped      its connection closed
 *              -> refused                a status and a sentence
 *
 * A parked pull delays nothing: later requests of its connection are handled at once. A pull that has become ready
 * stays parked while its connection is CONGESTED (channel.h). So of a client that reads slowly one reply waits in
 * memory, and not the replies to all of its pulls.
 *
 * A reply of more than a slice (shard.h) is made a slice at a time, in turn with other such replies
 * and the loop's other work: pull_handler_more(). A reply in chunks (pull_reply.h) pauses while its
 * client has much to read: pull_handler_written(). Meanwhile its connection is held, or, if it was
 * parked, no other parked pull of its connection is answered.
 */
#ifndef SERVER_REQUESTS_PULL_HANDLER_H
#define SERVER_REQUESTS_PULL_HANDLER_H

#include "server/requests/pull_reply.h"

#define PULL_HANDLER_PARKED_MAX 16u /* of one connection */
#define PULL_HANDLER_PARKED_BYTES_MAX \
    ((size_t)256 << 20) /* of a shard: all connections together */

struct pull_handler;

struct pull_handler_config {
    struct request_context *context; /* borrowed */
    uint64_t park_max_ms;
    size_t parked_bytes_max; /* 0: PULL_HANDLER_PARKED_BYTES_MAX */
    uint64_t
        deltas_max_bytes; /* of the rows that clients have (delta_rows.h), of all together; 0: no limit */
};

struct pull_handler_counts {
    uint64_t parked, parked_total, expired;
    uint64_t delta_bytes; /* now: of the rows that clients have */
};

struct pull_handler *pull_handler_new(const struct pull_handler_config *config);
void pull_handler_free(struct pull_handler *p);

/* Replies, now or later. REQUEST_LATER (connection.h). Else not 0: the connection cannot go on. */
int pull_handler_receive(struct pull_handler *p, struct request *r) ON_SHARD MUST_CHECK;

/* One slice of one of the replies that are made in slices; the next call continues another. */
void pull_handler_more(struct pull_handler *p) ON_SHARD;
bool pull_handler_is_busy(const struct pull_handler *p);

/* The connection has written some of the chunks that a reply waits for: the reply may continue. */
void pull_handler_written(struct pull_handler *p, struct connection *c);

/* A clock may have moved: answers what has become ready. */
void pull_handler_retry(struct pull_handler *p) ON_SHARD;

/* A few times a second: answers parked pulls of connections that are not congested any more,
 * refuses those whose deadline has passed, and those that wait for a worker which is suspected for
 * as long as a pull may wait: the shards do not agree. `loop_ms`: the clock of the connections'
 * loop; `shard_ms`: the shard's. */
void pull_handler_expire(struct pull_handler *p, uint64_t loop_ms, uint64_t shard_ms) ON_SHARD;

/* The connection is gone. */
void pull_handler_drop(struct pull_handler *p, struct connection *c) ON_SHARD;

/* Ends the pulls that ask for a table which is not there any more: with PS_ENOTABLE, or with their connection where
 * a part of the reply is sent; and frees what is known of its rows, of all connections from `first` on. To be called
 * before anything else happens to the shard. */
void pull_handler_refuse_dropped(struct pull_handler *p, struct connection *first) ON_SHARD;

/* The daemon is stopping. */
void pull_handler_refuse_all(struct pull_handler *p, int status, const char *sentence) ON_SHARD;

void pull_handler_count(const struct pull_handler *p, struct pull_handler_counts *ret) ON_SHARD;

/* The newest refusal: status and sentence. */
const struct err *pull_handler_last_refusal(const struct pull_handler *p);

/* The current time by the clocks of the loop, of the shard and of people; and how long a lease is. */
struct pull_handler_times {
    uint64_t loop_ms, shard_ms, unix_ms, lease_ms;
};

/* Adds the time that pulls have waited to the parked_ms of their jobs. */
void pull_handler_count_waiting(struct pull_handler *p) ON_SHARD;

/* The parked pulls for the node's report, at most n_max; returns how many. */
uint32_t pull_handler_report(struct pull_handler *p, const struct pull_handler_times *now,
                             struct stats_wait *ret_waits, uint32_t n_max) ON_SHARD;

#endif
