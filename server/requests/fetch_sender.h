/*
 * A thread that sends records to a shard's standby, so that the shard's thread neither checksums them nor copies them
 * to the kernel.
 *
 *     fetch_sender_begin(fd)      the standby's socket: a descriptor of its own
 *     fetch_sender_send()         one reply; the connection lends its way out meanwhile (connection_lend())
 *         [checksums, the frame's header and head, what the socket takes at once] -> on_sent
 *     fetch_sender_collect()      what has been sent, and the rest of it, which the connection sends
 *     fetch_sender_end()          closes the descriptor
 *
 * It never waits for the socket. So the shard's thread may wait for it, as it does when a connection ends.
 */
#ifndef SERVER_REQUESTS_FETCH_SENDER_H
#define SERVER_REQUESTS_FETCH_SENDER_H

#include <stdbool.h>
#include <uv.h>

#include "common/bytes.h"
#include "common/thread_role.h"
#include "proto/message_replication.h"

struct fetch_sender;

/* Starts the thread. on_sent: on the loop, once a reply may be collected; also if it has been. NULL: there is no
 * memory, or no thread. */
struct fetch_sender *fetch_sender_new(uv_loop_t *loop, void (*on_sent)(void *owner),
                                      void *owner) ON_SHARD;

/* Ends the thread, and closes what the loop knows of it. Nothing is being sent. NULL is fine. */
void fetch_sender_stop(struct fetch_sender *s) ON_SHARD;

/* After the loop's end. NULL is fine. */
void fetch_sender_free(struct fetch_sender *s);

/* From now on replies go to this socket, if there is a descriptor left. NULL is fine. */
void fetch_sender_begin(struct fetch_sender *s, int fd) ON_SHARD;

/* False also for NULL. */
bool fetch_sender_is_open(const struct fetch_sender *s) ON_SHARD;

/* Nothing is being sent. NULL is fine. */
void fetch_sender_end(struct fetch_sender *s) ON_SHARD;

/* It is open, and nothing is being sent. Takes the records, as record_ring_take() gave them. `reply`: without its
 * own. */
void fetch_sender_send(struct fetch_sender *s, struct bytes *records, uint64_t request_id,
                       const struct fetch_reply *reply) ON_SHARD;

/* True if fetch_sender_collect() does not wait. */
bool fetch_sender_has_sent(const struct fetch_sender *s) ON_SHARD;

/* Ends a fetch_sender_send(), for which it waits. *rest: the caller's, the part of the frame that was not sent; its
 * buffer is there also if nothing is left. Not 0: the socket has failed. */
int fetch_sender_collect(struct fetch_sender *s, struct bytes *rest, size_t *ret_n_sent)
    ON_SHARD MUST_CHECK;

#endif
