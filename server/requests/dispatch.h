/*
 * Handles a shard's requests: one table from frame type to handler. Each handler reads the message, calls the core and
 * replies. The core knows no frames, the connection no tables.
 *
 * The shard's time is the loop's, but stands still while the loop does (a checkpoint, a stopped process). So a lease
 * runs only while the shard listens, and no worker is declared dead for messages that the shard did not read.
 */
#ifndef SERVER_REQUESTS_DISPATCH_H
#define SERVER_REQUESTS_DISPATCH_H

#include "server/requests/fetch_handler.h"
#include "server/requests/pull_handler.h"
#include "server/requests/table_handler.h"
#include "server/requests/unpack_queue.h"

struct dispatch;

struct dispatch_config {
    struct shard *shard;           /* borrowed */
    uv_loop_t *loop;               /* borrowed */
    struct channel_loop *channels; /* borrowed: those of the loop */
    struct reply_queue *replies;   /* borrowed */
    /* Borrowed: those whose events are dispatch_events. To be set up before the first dispatch_tick(). */
    const struct connection_set *connections;
    uint32_t shard_number; /* of the cluster; for the log */
    uint32_t frame_max_bytes, lease_ms;
    uint64_t park_max_ms;
    uint64_t deltas_max_bytes;       /* pull_handler.h; 0: no limit */
    uint32_t tables_max;             /* of the shard (shard_config); 0: no limit */
    const struct group_view *groups; /* borrowed; NULL: this node is the primary */
    uint64_t wait_max_ms; /* of joins and tables, for space in the WAL; 0: deferred.h's */
    bool compress_replies;
    void (*on_space)(void *owner); /* of fetch_handler.h; NULL: never */
    void *owner;                   /* borrowed */
    bool
        is_alone; /* the cluster has no other shard: there is nobody to agree with on suspects */
};

struct dispatch_counts {
    uint64_t refused; /* answered with a status */
    struct pull_handler_counts pulls;
};

struct dispatch *dispatch_new(const struct dispatch_config *config);
void dispatch_free(struct dispatch *d) ON_SHARD;

/* A connection set's events; the owner is the dispatch. */
extern const struct connection_events dispatch_events;

/* A few times a second: leases, deadlines. */
void dispatch_tick(struct dispatch *d) ON_SHARD;

/* The write-ahead log has space again: continues pushes, joins and tables that waited for it. */
void dispatch_resume(struct dispatch *d) ON_SHARD;

/* From here on every request is refused with PS_ESTOPPING, and so are parked and running pulls and
 * queued pushes; the push that runs is finished. To be called before the loop ends: *d is freed
 * after it. */
void dispatch_stop(struct dispatch *d) ON_SHARD;

/* The same of a shard that has not served: a clock that is complete stays as it is. */
void dispatch_give_up(struct dispatch *d) ON_SHARD;

/* Tables were dropped, or have other settings (table_admin.h): ends the pulls that cannot go on. */
void dispatch_tables_changed(struct dispatch *d) ON_SHARD;

/* The shard's time. */
uint64_t dispatch_now_ms(struct dispatch *d) ON_SHARD;

struct fetch_handler *dispatch_fetches(struct dispatch *d);

/* No push is in the midst of its rows, nor a clock of lock step in its combination. */
bool dispatch_is_still(const struct dispatch *d) ON_SHARD;

/* The main thread has given fetch_handler.h an order: tries again what waited for the standby. */
void dispatch_standby_moved(struct dispatch *d) ON_SHARD;

struct pull_handler *dispatch_pulls(struct dispatch *d) ON_SHARD;

const struct unpack_queue *dispatch_bodies(const struct dispatch *d) ON_SHARD;

/* FRAME_TYPE_END of them, by type. */
const struct stats_requests *dispatch_requests(const struct dispatch *d) ON_SHARD;

const struct table_handler_full *dispatch_full_tables(const struct dispatch *d) ON_SHARD;

void dispatch_count(const struct dispatch *d, struct dispatch_counts *ret) ON_SHARD;

#endif
