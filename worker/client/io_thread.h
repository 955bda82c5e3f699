/*
 * A thread for the sockets of some links (ps_options.net_threads): it receives, checks sums and sends, which is most of
 * what a large batch costs a client. What frames mean stays with the links, all of them on one thread, the network's.
 *
 *     the network's thread                     an I/O thread
 *     io_connection_new()  --- open --->       a connector of its loop
 *     events.connected     <-- connected ---
 *     io_connection_send() --- frame --->      channel_send()
 *                          <-- a buffer ---    as large, for the next frame
 *     events.frame         <-- frame ---       with the buffer that it was received to
 *                          --- a buffer --->   this one, or the one that its owner has left in its place
 *     events.closed        <-- closed ---      all of it has come before
 *     io_connection_drop() --- drop --->       the connector goes
 *                          <-- gone ---        no mail is left: the connection is freed
 *
 * All of that are mails, in the order of posting; nothing else is shared. All functions are called on the network's
 * thread, but for those marked "any thread".
 */
#ifndef WORKER_CLIENT_IO_THREAD_H
#define WORKER_CLIENT_IO_THREAD_H

#include "common/address.h"
#include "common/mailbox.h"
#include "proto/channel_loop.h"
#include "proto/connector.h"

#define IO_THREADS_MAX 15u /* beside the network's own */

struct io_thread;
struct io_connection;

/* home: the network thread's mailbox and loop, borrowed until io_thread_free(). -ENOMEM, and what libuv says. */
int io_thread_new(struct mailbox *home, struct channel_loop *home_channels,
                  struct io_thread **ret) MUST_CHECK;
/* Any thread, once the home takes no more mails and all connections were dropped. NULL is fine. */
void io_thread_free(struct io_thread *t);

/* Any thread: CPU time so far. */
uint64_t io_thread_cpu_ns(const struct io_thread *t);

/* As connector_new(). No event comes from inside a call. */
int io_connection_new(struct io_thread *t, const struct address *address,
                      const struct connector_events *events, void *owner,
                      struct io_connection **ret) MUST_CHECK;

/* No event follows. NULL is fine. After events.closed nothing is to be dropped. */
void io_connection_drop(struct io_connection *c);

/* As channel_send(): takes the frame. Without memory the connection ends, with events.closed. */
void io_connection_send(struct io_connection *c, struct bytes *frame);

/* From the next frame on: the peer's limit. */
void io_connection_set_frame_max(struct io_connection *c, uint32_t n_bytes);

/* As channel_frame_buffer(). */
struct bytes *io_connection_frame_buffer(struct io_connection *c);

#endif
