/*
 * Who may have a connection. The main thread keeps an entry for each connection that it has handed to a shard, by the
 * peer's address; the shard's thread writes into the entry how far its peer has come.
 *
 *     connection_limits_admit -> connection_limits_open -> GREETED -> ASKED -> JOINED -> CLOSED -> freed by a sweep
 *                                                        its owner closes it, if connection_entry_is_evicted()
 *
 * Of connections_max, a sixteenth is kept for addresses that have, or had until a lease ago, a worker that has joined.
 * An address may have address_max connections that have not joined. Where there is no place, the oldest connection
 * that has neither joined nor asked for anything is evicted for the new one: one of the address that has most of these,
 * which keeps it for CONNECTION_LIMITS_GRACE_MS from others that have as many. One that does neither for idle_ms is evicted, too.
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

enum connection_entry_state { ENTRY_GREETED, ENTRY_ASKED, ENTRY_JOINED, ENTRY_CLOSED };

/* One connection. The main thread's, but for the atomic fields. */
struct connection_entry {
    _Atomic int state;       /* enum connection_entry_state: written by who serves it */
    _Atomic bool is_evicted; /* written by the main thread */
    uint64_t since_ms;
    struct connection_address *address; /* borrowed from the limits */
    struct connection_entry *next, *prev;
};

/* For who serves the connection; an entry that is NULL has no limits. Closed is the last call. */
static inline void connection_entry_set(struct connection_entry *entry,
                                        enum connection_entry_state state)
{
    if (entry)
        atomic_store_explicit(&entry->state, (int)state, memory_order_release);
}

static inline bool connection_entry_is_evicted(const struct connection_entry *entry)
{
    return entry && atomic_load_explicit(&entry->is_evicted, memory_order_relaxed);
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

/* What the report says of one address. Times are those of the calls' now_ms. */
struct connection_limits_address {
    char text[ADDRESS_TEXT_MAX];         /* without a port */
    uint64_t n_open, n_unjoined, n_idle; /* idle: has neither joined nor asked */
    uint64_t idle_since_ms;              /* of the oldest; 0: none */
    uint64_t refused_ms;                 /* when one of it was last refused; 0: never */
};

struct connection_limits *connection_limits_new(const struct connection_limits_config *config)
    ON_MAIN;

/* No entry is used any more. NULL is fine. */
void connection_limits_free(struct connection_limits *l) ON_MAIN;

/* May a peer of this address have a connection? -EMFILE: *err says which limit it has reached. */
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

/* When a connection was last refused; 0: never. */
uint64_t connection_limits_refused_ms(const struct connection_limits *l) ON_MAIN;

/* Each address that has a connection that is idle for longer than CONNECTION_LIMITS_GRACE_MS, or many. */
void connection_limits_each(const struct connection_limits *l, uint64_t now_ms,
                            void (*each)(void *arg, const struct connection_limits_address *a),
                            void *arg) ON_MAIN;

#endif
