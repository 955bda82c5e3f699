/*
 * Long bodies that came compressed: each is unpacked a slice at a time, and one after the other, so that nobody waits
 * for more than a slice and memory is taken for one.
 *
 *     received -> waits -> [memory] -> unpacked in slices -> handled again -> its body is in use -> the next
 *                                   -> handled again, to be refused: damaged, or no memory
 *                       -> handled again, to be refused: the daemon is stopping
 *                       -> dropped    its connection closed
 *
 * The connections are held meanwhile (connection.h). Pushes have a line of their own, as they may have to wait for the
 * log's disk; so have pulls of workers, and those of readers, of which there may be any number.
 *
 * Memory. A body counts in --client-memory from when its unpacking begins. It waits for space in there, but not for
 * ever: what is held may be of peers that let go of nothing. And not if it is these lines themselves that hold too
 * much. Then it begins all the same, and the connections that hold most are closed instead (connection_set_config).
 */
#ifndef SERVER_REQUESTS_UNPACK_QUEUE_H
#define SERVER_REQUESTS_UNPACK_QUEUE_H

#include "common/thread_role.h"
#include "server/admin/stats.h"
#include "server/net/connection.h"

#define UNPACK_QUEUE_SPACE_MS 3000u /* so long a body waits for space in --client-memory */

struct unpack_queue;

struct unpack_queue_config {
    uv_loop_t *loop; /* borrowed */
    uint32_t shard_number;
    /* Handles a late request (connection.h), whose header is good until it returns. Not 0: the connection cannot go
     * on. */
    int (*on_late)(void *owner, struct request *r);
    void *owner; /* borrowed */
};

struct unpack_queue *unpack_queue_new(const struct unpack_queue_config *config);
void unpack_queue_free(struct unpack_queue *q);

/* A request whose handler has returned REQUEST_LATER for its body: holds its connection. -ENOMEM: it does not. */
int unpack_queue_add(struct unpack_queue *q, struct request *r) MUST_CHECK;

/* One slice of one body. */
void unpack_queue_more(struct unpack_queue *q) ON_SHARD;

/* True if unpack_queue_more() has work. */
bool unpack_queue_is_busy(struct unpack_queue *q);

/* The connection is gone. */
void unpack_queue_drop(struct unpack_queue *q, const struct connection *c);

/* The daemon is stopping: all are handled, to be refused with that status. */
void unpack_queue_stop(struct unpack_queue *q, int status) ON_SHARD;

/* The waits of its lines for the node's report, at most n_max; returns how many. */
uint32_t unpack_queue_report(const struct unpack_queue *q, uint64_t unix_ms,
                             struct stats_wait *ret_waits, uint32_t n_max);

#endif
