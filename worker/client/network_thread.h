/*
 * The client's network thread: a libuv loop that runs the cluster_client. The trainer's threads post
 * commands to its mailbox and wait for the results in the client_state.
 */
#ifndef WORKER_CLIENT_NETWORK_THREAD_H
#define WORKER_CLIENT_NETWORK_THREAD_H

#include "worker/client/client_state.h"
#include "worker/client/ps_types.h"
#include "worker/client/request.h"

struct network_thread;

/* Starts the thread, which finds the servers and joins them. `options` (defaults filled in) and its
 * texts are copied; the state is borrowed until network_thread_free(). -EINVAL: options->servers. -ENOMEM, and what
 * libuv says. */
int network_thread_new(const struct ps_options *options, struct client_state *state,
                       struct network_thread **ret, struct err *err) MUST_CHECK;

/* Drops all requests and ends the thread. NULL is fine. */
void network_thread_free(struct network_thread *net);

/* ---- commands of the trainer's threads ----
 *
 * Only a table's can fail. requests: one for each shard; the thread takes them and leaves NULLs. They travel as one
 * mail, which is the first one's, so that a push allocates nothing here. Those of an older epoch are dropped. */

void network_thread_push(struct network_thread *net, uint64_t epoch, struct request **requests);
void network_thread_pull(struct network_thread *net, uint64_t epoch, struct request **requests);

/* What was asked for by pulls that have ended (pull.h) is dropped. */
void network_thread_drop_ended_pulls(struct network_thread *net);

/* One request is under way at a time. -ENOMEM: it is not. */
int network_thread_table(struct network_thread *net, const struct table_request *request)
    MUST_CHECK;
/* The last one, which is no longer under way. */
void network_thread_drop_table(struct network_thread *net);

/* Once. */
void network_thread_leave(struct network_thread *net);

/* Fills what the network thread counts: bytes, rows_refused, reconnects, resent_pushes,
 * rejoins, min_clock, staleness_max, net_ns. Any thread. */
void network_thread_stats(const struct network_thread *net, struct ps_stats *ret);

/* "shard 3 at host:port"; once the worker has joined. */
void network_thread_shard_name(const struct network_thread *net, uint32_t shard, char *dst,
                               size_t n_bytes);

#endif
