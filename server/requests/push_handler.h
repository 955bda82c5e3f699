/*
 * Pushes: finished at once, or, when they are large, a slice at a time (shard.h) with their
 * connection held.
 *
 *     received -> finished
 *              -> running -> finished     one of a shard; also while a large lock-step clock that it has completed is
 *                                         combined
 *              -> queued -> running       the other large ones, in the order of arrival; while the
 *                                         log is full, all, also one that was running and had not
 *                                         taken effect; while its disk is slower than pushes come,
 *                                         all, each for a moment (wal_pace.h)
 *              -> dropped                 its connection closed before it ran: nothing happened
 *
 * Precheck: the values of a large push are checked for NaN and infinity while they are received.
 * Their bytes are then in the cache and need not be fetched from memory again once all are there.
 * A precheck decides nothing: a row found finite is skipped by the check (section.h, n_finite); all
 * others, and all errors, are left to the check, when the frame is whole and its crc right. Only
 * fp32 values are prechecked: the other codecs have far fewer bytes.
 */
#ifndef SERVER_REQUESTS_PUSH_HANDLER_H
#define SERVER_REQUESTS_PUSH_HANDLER_H

#include "server/requests/request_context.h"

struct push_handler;

/* `context`: borrowed. A push that may have moved a clock sets its clock_moved. */
struct push_handler *push_handler_new(struct request_context *context);
void push_handler_free(struct push_handler *p);

/* Runs the push and replies, now or later. REQUEST_LATER (connection.h). Else not 0: the connection cannot go on. */
int push_handler_receive(struct push_handler *p, struct request *r) ON_SHARD MUST_CHECK;

/* One slice of the push that runs, or of the first in the queue; the latter only while *n_bytes, to which it adds what
 * pushes cost (shard_push_cost()), is below max_bytes. now_ms: the shard's time. True once that push has been answered:
 * call it again at once. The sender may have sent another push, which must not get ahead of the queue. */
bool push_handler_more(struct push_handler *p, uint64_t now_ms, uint64_t max_bytes,
                       uint64_t *n_bytes) ON_SHARD;

/* True if push_handler_more() has work. */
bool push_handler_is_busy(const struct push_handler *p);

/* True while a push is under way in slices. */
bool push_handler_runs(const struct push_handler *p);

/* Inside events.on_closed: its pushes that wait are dropped. One that runs goes on, and keeps its bytes. */
void push_handler_drop(struct push_handler *p, struct connection *c) ON_SHARD;

/* The daemon is stopping: the push that runs is finished, the others are refused. */
void push_handler_stop(struct push_handler *p, uint64_t now_ms) ON_SHARD;

/* --- precheck --- */

/* Of a body, n_bytes have been received, and prechecked_bytes (0 at first) checked; returns the
 * next prechecked_bytes, at the end of a row. *scratch is the caller's, and holds nothing. max: the
 * largest magnitude of a gradient (shard_gradient_max()). */
size_t push_handler_precheck(struct push *scratch, const struct frame_header *header,
                             const uint8_t *head, const uint8_t *body, size_t n_bytes,
                             size_t prechecked_bytes, uint32_t max);

/* Sets n_finite of all sections of a push whose body it is. */
void push_handler_set_finite(struct push *push, const uint8_t *body, size_t prechecked_bytes);

#endif
