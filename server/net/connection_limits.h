/*
 * Limits on connections by address. The main thread keeps an entry, by the peer's address, for each connection that it
 * has handed to a shard. The shard's thread writes the connection's progress into the entry.
 *
 *     connection_limits_admit -> connection_limits_open -> GREETED -> ASKED -> JOINED -> CLOSED -> freed by a sweep
 *                                                        its owner closes it, if connection_entry_is_evicted()
 *
 * A connection is silent from its last request on. One that has joined and is silent for longer than a lease counts as
 * not joined. An address is a host, of IPv6 a /64 (address_host()).
 *
 * Of connections_max, a sixteenth is kept for addresses that have, or had until a lease ago, a worker that has joined,
 * and have fewer connections than that: a worker that has lost its connection finds a place.
 * An address may have address_max connections that have not joined. Where there is no place, a connection that has not
 * joined is evicted for the new one. Candidates are the new one's address and those with more of these: the one with
 * most that are silent for their grace loses its longest silent. If there is none, the address with most that have not
 * joined loses its longest silent at once, if it still has more than the new one's. If there is none either, an address
 * with more than half of all places loses its longest silent, joined or not, to another address. A connection that is
 * silent for too long is evicted anyway:
 *
 *     state             its grace                           too long
 *     GREETED           CONNECTION_LIMITS_GRACE_MS          idle_ms
 *     ASKED             CONNECTION_LIMITS_ASKED_GRACE_MS    CONNECTION_LIMITS_ASKED_TIMES as long
 *     JOINED            the same                            the same, and at least a lease
 *
 * Operators' connections are not counted here (admin_server.h).
 */
#ifndef SERVER_NET_CONNECTION_LIMITS_H
#define SERVER_NET_CONNECTION_LIMITS_H

#include <stdatomic.h>
#include <sys/socket.h>

#include "common/address.h"
#include "common/thread_role.h"

#define CONNECTION_LIMITS_GRACE_MS 1000u
#define CONNECTION_LIMITS_ASKED_GRACE_MS 10000u /* a reader computes between two requests */
#define CONNECTION_LIMITS_ASKED_TIMES 10u

enum connection_entry_state { ENTRY_GREETED, ENTRY_ASKED, ENTRY_JOINED, ENTRY_CLOSED };

/* One connection. The main thread's, but for the atomic fields. */
struct connection_entry {
    _Atomic int state; /* enum connection_entry_state: written by the thread that serves it */
    _Atomic bool is_evicted; /* written by the main thread */
    _Atomic uint64_t
        active_ms; /* its last request, or its start: written by the thread that serves it */
    struct connection_address *address; /* borrowed from the limits */
    struct connection_entry *next, *prev;
};

/* Called by the thread that serves the connection; an entry that is NULL has no limits. Closed is the last call. */
static inline void connection_entry_set(struct connection_entry *entry,
                                        enum connection_entry_state state)
{
    if (entry)
        atomic_store_explicit(&entry->state, (int)state, memory_order_release);
}

/* A request has come, or its answer is still to come. */
static inline void connection_entry_touch(struct connection_entry *entry, uint64_t now_ms)
{
    if (entry)
        atomic_store_explicit(&entry->active_ms, now_ms, memory_order_relaxed);
}

static inline bool connection_entry_is_evicted(const struct connection_entry *entry)
{
    return entry && atomic_load_explicit(&entry->is_evicted, memory_order_relaxed);
}

/* The limits' time. It stands still for CONNECTION_LIMITS_CATCH_UP_MS after the process did, as when it was stopped:
 * until then shards read what has come meanwhile, and nobody counts as silent for it. Zeroed at first. */
#define CONNECTION_LIMITS_STALL_MS 500u
#define CONNECTION_LIMITS_CATCH_UP_MS 1000u

struct connection_limits_clock {
    uint64_t seen_ms, behind_ms, caught_up_ms;
};

/* To be called at least a few times a second. */
static inline uint64_t connection_limits_time(struct connection_limits_clock *c,
                                              uint64_t now_ms)
{
    if (c->seen_ms && now_ms - c->seen_ms > CONNECTION_LIMITS_STALL_MS) {
        c->behind_ms = (now_ms < c->caught_up_ms ? c->behind_ms : 0) + now_ms - c->seen_ms;
        c->caught_up_ms = now_ms + CONNECTION_LIMITS_CATCH_UP_MS;
    }
    c->seen_ms = now_ms;
    return now_ms < c->caught_up_ms ? now_ms - c->behind_ms : now_ms;
}

struct connection_limits;

struct connection_limits_config {
    uint32_t connections_max;
    uint32_t
        address_max; /* 0: half of connections_max, but at least CONNECTION_LIMITS_ADDRESS_MIN */
    uint64_t idle_ms, lease_ms;
};

#define CONNECTION_LIMITS_ADDRESS_MIN 64u

struct connection_limits_counts {
    uint64_t open, unjoined;
    uint64_t evicted, refused; /* since the start */
};

/* The report of one address. Times are those of the calls' now_ms. */
struct connection_limits_address {
    char text[ADDRESS_TEXT_MAX];           /* without a port */
    uint64_t n_open, n_unjoined, n_idle;   /* idle: has not asked, or is silent for idle_ms */
    uint64_t idle_since_ms, idle_until_ms; /* of the one that is evicted next; 0: none */
    uint64_t refused_ms;                   /* when one of it was last refused; 0: never */
};

struct connection_limits *connection_limits_new(const struct connection_limits_config *config)
    ON_MAIN;

/* From here on other limits. Connections that pass them stay, and go as they would for a new one. */
void connection_limits_set(struct connection_limits *l,
                           const struct connection_limits_config *config) ON_MAIN;

/* No entry is used any more. NULL is fine. */
void connection_limits_free(struct connection_limits *l) ON_MAIN;

/* 0 if a peer of this address may have a connection. -EMFILE: *err names the limit that it has reached. */
int connection_limits_admit(struct connection_limits *l, const struct sockaddr_storage *address,
                            uint64_t now_ms, struct err *err) ON_MAIN MUST_CHECK;

/* The entry of a connection that is handed over. */
struct connection_entry *connection_limits_open(struct connection_limits *l,
                                                const struct sockaddr_storage *address,
                                                uint64_t now_ms) ON_MAIN;

/* A few times a second: frees closed entries, evicts idle connections. */
void connection_limits_sweep(struct connection_limits *l, uint64_t now_ms) ON_MAIN;

void connection_limits_count(const struct connection_limits *l,
                             struct connection_limits_counts *ret) ON_MAIN;

/* The time of the last refusal; 0: never. */
uint64_t connection_limits_refused_ms(const struct connection_limits *l) ON_MAIN;

/* Each address that has a connection that is idle for longer than CONNECTION_LIMITS_GRACE_MS, or many. */
void connection_limits_each(const struct connection_limits *l, uint64_t now_ms,
                            void (*each)(void *arg, const struct connection_limits_address *a),
                            void *arg) ON_MAIN;

#endif
