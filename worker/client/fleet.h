/*
 * All shards of the cluster as one: finds them, holds a link to each, and decides what only the
 * whole can: when all are joined, and when the worker needs a new incarnation on all of them.
 * What comes of it is told at the desk.
 *
 * Everything but the last two functions runs on the loop's thread; time is an argument.
 */
#ifndef WORKER_CLIENT_FLEET_H
#define WORKER_CLIENT_FLEET_H

#include "proto/channel_hub.h"
#include "worker/client/address.h"
#include "worker/client/desk.h"
#include "worker/client/parcel.h"
#include "worker/client/ps_types.h"

struct fleet;

/* Starts at the first fleet_tick(). options (no zeros where a default is meant) and desk are
 * borrowed. */
struct fleet *fleet_new(struct channel_hub *hub, const struct ps_options *options,
                        const struct address *servers, uint32_t n_servers, struct desk *desk);

/* Drops all links; what is ordered later comes to nothing. The loop needs to run on until libuv
 * is through. */
void fleet_stop(struct fleet *fleet);
void fleet_free(struct fleet *fleet);

void fleet_tick(struct fleet *fleet, uint64_t now_ms);

/* All joined links say at their next tick that they live: this process stood still for a while. */
void fleet_beat_soon(struct fleet *fleet);

/* One parcel for each shard. Those that a link takes become NULL; those of an older epoch are
 * left. */
void fleet_push(struct fleet *fleet, uint64_t epoch, struct parcel **parcels);
void fleet_pull(struct fleet *fleet, uint64_t epoch, uint64_t pull_id, struct parcel **parcels);
void fleet_drop_pull(struct fleet *fleet);

void fleet_table(struct fleet *fleet, const struct table_request *request);
void fleet_drop_table(struct fleet *fleet);
void fleet_leave(struct fleet *fleet);

/* From any thread. Fills what the links count: bytes, rows_refused, reconnects, resent_pushes,
 * rejoins, min_clock, staleness_max. */
void fleet_stats(const struct fleet *fleet, struct ps_stats *ret);

/* From any thread, once the desk is open: "shard 3 at host:port". */
void fleet_shard_name(const struct fleet *fleet, uint32_t shard, char *dst, size_t n_bytes);

#endif
