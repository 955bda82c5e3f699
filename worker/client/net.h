/*
 * The client's network thread: a loop that runs the fleet (fleet.h). The trainer's threads give
 * it orders through a mailbox and learns at the desk (desk.h) what came of them.
 */
#ifndef WORKER_CLIENT_NET_H
#define WORKER_CLIENT_NET_H

#include "worker/client/desk.h"
#include "worker/client/parcel.h"
#include "worker/client/ps_types.h"

struct net;

/* Starts the thread, which looks for the servers and opens the desk. `options` (no zeros where
 * a default is meant) and its texts are copied; the desk is borrowed until net_free(). -EINVAL:
 * options->servers. */
int net_new(const struct ps_options *options, struct desk *desk, struct net **ret,
            struct err *err) MUST_CHECK;

/* Drops everything and ends the thread. NULL is fine. */
void net_free(struct net *net);

/* ---- orders, from the trainer's threads. Parcels: one for each shard, taken; those of an older
 * epoch are dropped. ---- */

void net_push(struct net *net, uint64_t epoch, struct parcel *const *parcels);
void net_pull(struct net *net, uint64_t epoch, uint64_t pull_id, struct parcel *const *parcels);
void net_drop_pull(struct net *net);
void net_table(struct net *net, const struct table_request *request);
void net_drop_table(struct net *net);
void net_leave(struct net *net);

/* Fills what the network thread counts: bytes, rows_refused, reconnects, resent_pushes,
 * rejoins, min_clock, staleness_max, net_ns. Any thread. */
void net_stats(const struct net *net, struct ps_stats *ret);

/* "shard 3 at host:port"; once the desk is open. */
void net_shard_name(const struct net *net, uint32_t shard, char *dst, size_t n_bytes);

#endif
