/*
 * The cluster's client: finds all shards, keeps a link to each, and decides for all of them when the worker has joined,
 * when it needs a new incarnation, and where the links go when another psd has become a node's primary. Results go to
 * the client_state.
 *
 * Time is an argument. All functions run on the loop's thread, but for those marked "any thread".
 */
#ifndef WORKER_CLIENT_CLUSTER_CLIENT_H
#define WORKER_CLIENT_CLUSTER_CLIENT_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "worker/client/client_state.h"
#include "worker/client/ps_types.h"
#include "worker/client/request.h"

struct cluster_client;
struct io_thread;

/* Starts at the first cluster_client_tick(). options (defaults filled in), io and state are borrowed. Connections to
 * shard i are of the I/O thread io[(i + 1) % n_io], or of this loop if that is NULL. NULL without memory. */
struct cluster_client *cluster_client_new(struct channel_loop *channels,
                                          const struct ps_options *options,
                                          const struct address *servers, uint32_t n_servers,
                                          struct io_thread *const *io, uint32_t n_io,
                                          struct client_state *state) MUST_CHECK;

/* Frees all links; calls after that do nothing. The loop needs to run on until libuv has closed
 * the connections. */
void cluster_client_stop(struct cluster_client *cluster);
void cluster_client_free(struct cluster_client *cluster);

/* Called when the start has failed. Unless this worker has pushed, it leaves the shards that it has joined, so that no
 * worker waits for its lease or is refused for its settings. False: there is nothing to wait for. */
bool cluster_client_abandon(struct cluster_client *cluster);
bool cluster_client_has_left(const struct cluster_client *cluster);

void cluster_client_tick(struct cluster_client *cluster, uint64_t now_ms);

/* Every joined link sends a heartbeat at its next tick: this process stood still for a while. */
void cluster_client_beat_soon(struct cluster_client *cluster);

/* True if every link is READY, and no connection to ask for a primary is under way: until one is lost, no address is
 * looked up and no connection is made. */
bool cluster_client_is_steady(const struct cluster_client *cluster);

/* Requests between the two leave together, as far as they can. */
void cluster_client_cork(struct cluster_client *cluster);
void cluster_client_uncork(struct cluster_client *cluster);

/* Takes one request for each shard, from `first` to the last one's `next`; those of an older epoch, and of a pull that
 * has ended, are freed. */
void cluster_client_push(struct cluster_client *cluster, struct request *first);
void cluster_client_pull(struct cluster_client *cluster, struct request *first);
void cluster_client_drop_ended_pulls(struct cluster_client *cluster);

/* Without memory at one link no link has the table, and it is answered with -ENOMEM. */
void cluster_client_table(struct cluster_client *cluster, const struct table_request *request);
void cluster_client_drop_table(struct cluster_client *cluster);
void cluster_client_leave(struct cluster_client *cluster);

/* Any thread. Fills the counters of the links: bytes, rows_refused, reconnects, resent_pushes,
 * rejoins, min_clock, staleness_max, foreign, pushes_lost, skipped_clocks, pushes_late; and
 * moved_to. */
void cluster_client_stats(const struct cluster_client *cluster, struct ps_stats *ret);

/* Any thread, once the state is JOINED: "shard 3 at host:port". */
void cluster_client_shard_name(struct cluster_client *cluster, uint32_t shard, char *dst,
                               size_t n_bytes);

/* ---- fencing: the servers declare this worker dead ----
 *
 * Once in a while is a slow host. Often is another process with the same rank: each replaces the
 * other for ever, and gets some pushes through in between. */

#define CLUSTER_CLIENT_FENCES_MAX 5u    /* so many are tolerated ... */
#define CLUSTER_CLIENT_FENCES_MS 60000u /* ... within so long */

/* Zeroed: never fenced. */
struct cluster_client_fences {
    uint64_t at_ms[CLUSTER_CLIENT_FENCES_MAX]; /* a ring */
    uint64_t n;
};

/* Counts one more, now. Returns how many there were in the window, this one included, up to
 * CLUSTER_CLIENT_FENCES_MAX + 1. */
uint32_t cluster_client_count_fence(struct cluster_client_fences *f, uint64_t now_ms);

/* Delay before the n-th join in the window: 0, then 100 ms, 200 ms ... */
uint32_t cluster_client_rejoin_delay_ms(uint32_t n);

/* The incarnation after `own`, above the fence: the time, if the clocks agree; else more than the servers have seen.
 * random: any number, so that two processes of one rank choose different ones. */
uint64_t cluster_client_next_incarnation(uint64_t own, uint64_t fenced_below, uint64_t unix_ms,
                                         uint64_t random);

/* ---- foreign pushes ----
 *
 * A shard's version counts the pushes that it has applied (server/core). After a push of this worker
 * it has grown by what that push is worth. More: another worker pushes, too. Less: the shard was
 * restarted and has lost pushes. */

struct cluster_client_version {
    uint64_t version; /* after our last push, or at our first pull */
    bool known;
};

/* A pull's answer. */
static inline void cluster_client_version_pulled(struct cluster_client_version *v,
                                                 uint64_t version)
{
    if (!v->known)
        *v = (struct cluster_client_version){ version, true };
}

/* A push's answer; version 0: it was lost. True: the version is not what our push alone leaves. */
static inline bool cluster_client_version_pushed(struct cluster_client_version *v,
                                                 uint64_t n_versions, uint64_t version)
{
    uint64_t expected = v->version + n_versions;
    bool is_foreign = v->known && version && version != expected;

    v->version = version ? version : expected;
    v->known = v->known || version;
    return is_foreign;
}

#endif
