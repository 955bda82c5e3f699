/*
 * The client's network: a libuv loop that runs the cluster_client. The trainer's threads post commands to its mailbox
 * and wait for the results in the client_state.
 *
 * Without ps_options.drives the network's own thread runs the loop, beside threads that have something else to do:
 * psworker's. With it one thread at a time does. To hand a request to another thread and an answer back takes
 * four system calls and two switches of threads, more than all the rest of a small pull. So:
 *
 *     issuer   a thread with a small request sends it itself, and never sleeps for that
 *     driver   a thread that waits for an answer reads the sockets itself (client_state_network), one of all that wait,
 *              in the first 10 ms of its wait
 *     own      the network's own thread, while nobody drives: heartbeats, deadlines, answers that nobody waits for yet
 *
 * The loop only looks at its sockets, under `turns`; who has nothing to do sleeps outside of it. While a link is not
 * READY all is the own thread's: addresses are looked up and connections made on no caller's thread.
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

/* n_came: pulls that have come, and that the caller has still to fetch. While these keep it busy, and callers drive,
 * the new one waits for others, to leave with them in one system call: for one that finds fewer to fetch, for a
 * driver before it sleeps, or for a millisecond. */
void network_thread_pull(struct network_thread *net, uint64_t epoch, struct request **requests,
                         uint32_t n_came);

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
