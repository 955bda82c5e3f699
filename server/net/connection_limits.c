#include "server/net/connection_limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define SHOWN_AT_ONCE 16u  /* so many that are idle are reported before their grace is over */
#define RESERVED_SHARE 16u /* one of so many places is for addresses of live workers */
#define HOG_SHARE 2u       /* an address with more than one of so many loses joined ones, too */

struct connection_address {
    struct connection_address *next;
    struct sockaddr_storage key; /* address_host() */
    uint64_t n_open;             /* entries that point here */
    uint64_t n_counted;          /* of these, neither closed nor evicted */
    uint64_t n_unjoined;         /* of n_counted */
    uint64_t n_silent, n_idle;   /* of n_unjoined: silent for their grace; for the report */
    uint64_t idle_since_ms, idle_until_ms; /* of the one that is evicted next; 0: none */
    uint64_t joined_ms;                    /* when one was last seen joined; 0: never */
    uint64_t refused_ms;                   /* when one was last refused; 0: never */
};

struct connection_limits {
    struct connection_limits_config config;
    struct connection_entry *oldest, *newest; /* owned */
    struct connection_address *addresses;     /* owned */
    uint64_t refused_ms;                      /* when one was last refused; 0: never */
    struct connection_limits_counts
        counts; /* as of the last sweep, and what was opened since */
};

void connection_limits_set(struct connection_limits *l,
                           const struct connection_limits_config *config)
{
    l->config = *config;
    if (!l->config.address_max) {
        l->config.address_max = config->connections_max / 2;
        if (l->config.address_max < CONNECTION_LIMITS_ADDRESS_MIN)
            l->config.address_max = CONNECTION_LIMITS_ADDRESS_MIN;
    }
}

struct connection_limits *connection_limits_new(const struct connection_limits_config *config)
{
    struct connection_limits *l = memory_alloc(sizeof *l);

    connection_limits_set(l, config);
    return l;
}

static enum connection_entry_state state_of(const struct connection_entry *entry)
{
    return (enum connection_entry_state)atomic_load_explicit(&entry->state,
                                                             memory_order_acquire);
}

static void free_entry(struct connection_limits *l, struct connection_entry *entry)
{
    entry->address->n_open--;
    if (entry->prev)
        entry->prev->next = entry->next;
    else
        l->oldest = entry->next;
    if (entry->next)
        entry->next->prev = entry->prev;
    else
        l->newest = entry->prev;
    free(entry);
}

void connection_limits_free(struct connection_limits *l)
{
    struct connection_address *next;

    if (!l)
        return;
    while (l->oldest)
        free_entry(l, l->oldest);
    for (struct connection_address *a = l->addresses; a; a = next) {
        next = a->next;
        free(a);
    }
    free(l);
}

/* --- addresses --- */

/* NULL: it has no connection, and had no worker a lease ago. */
static struct connection_address *find_address(const struct connection_limits *l,
                                               const struct sockaddr_storage *address)
{
    struct sockaddr_storage key = address_host(address);
    struct connection_address *a = l->addresses;

    while (a && memcmp(&a->key, &key, sizeof key) != 0)
        a = a->next;
    return a;
}

static struct connection_address *upsert_address(struct connection_limits *l,
                                                 const struct sockaddr_storage *address)
{
    struct connection_address *a = find_address(l, address);

    if (a)
        return a;
    a = memory_alloc(sizeof *a);
    *a = (struct connection_address){ .key = address_host(address), .next = l->addresses };
    l->addresses = a;
    return a;
}

static bool has_live_worker(const struct connection_limits *l,
                            const struct connection_address *a, uint64_t now_ms)
{
    return a->joined_ms && now_ms - a->joined_ms <= l->config.lease_ms;
}

/* Frees addresses without a connection, once their workers' leases are over. */
static void free_old_addresses(struct connection_limits *l, uint64_t now_ms)
{
    struct connection_address **at = &l->addresses, *a;

    while ((a = *at)) {
        if (a->n_open || has_live_worker(l, a, now_ms)) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        free(a);
    }
}

/* --- counting --- */

static uint64_t active_ms(const struct connection_entry *entry)
{
    return atomic_load_explicit(&entry->active_ms, memory_order_relaxed);
}

/* The shards' clocks may be a moment ahead. */
static uint64_t silent_ms(const struct connection_entry *entry, uint64_t now_ms)
{
    uint64_t since_ms = active_ms(entry);

    return now_ms > since_ms ? now_ms - since_ms : 0;
}

/* Neither evicted nor a live worker's. */
static bool is_unjoined(const struct connection_limits *l, const struct connection_entry *entry,
                        uint64_t now_ms)
{
    return !atomic_load(&entry->is_evicted) &&
           (state_of(entry) != ENTRY_JOINED || silent_ms(entry, now_ms) > l->config.lease_ms);
}

static bool is_silent(const struct connection_limits *l, const struct connection_entry *entry,
                      uint64_t now_ms)
{
    uint64_t grace_ms = state_of(entry) == ENTRY_GREETED ? CONNECTION_LIMITS_GRACE_MS
                                                         : CONNECTION_LIMITS_ASKED_GRACE_MS;

    return is_unjoined(l, entry, now_ms) && silent_ms(entry, now_ms) >= grace_ms;
}

/* So long it may be silent. */
static uint64_t silence_max_ms(const struct connection_limits *l,
                               const struct connection_entry *entry)
{
    uint64_t asked_ms = l->config.idle_ms * CONNECTION_LIMITS_ASKED_TIMES;

    if (state_of(entry) == ENTRY_GREETED)
        return l->config.idle_ms;
    if (state_of(entry) == ENTRY_JOINED && l->config.lease_ms > asked_ms)
        return l->config.lease_ms;
    return asked_ms;
}

/* For the report. */
static void count_idle(const struct connection_limits *l, const struct connection_entry *entry,
                       uint64_t now_ms)
{
    struct connection_address *a = entry->address;
    uint64_t until_ms = active_ms(entry) + silence_max_ms(l, entry);

    if (state_of(entry) != ENTRY_GREETED && silent_ms(entry, now_ms) <= l->config.idle_ms)
        return;
    a->n_idle++;
    if (a->idle_until_ms && a->idle_until_ms <= until_ms)
        return;
    a->idle_since_ms = active_ms(entry);
    a->idle_until_ms = until_ms;
}

static void count_entry(struct connection_limits *l, const struct connection_entry *entry,
                        uint64_t now_ms)
{
    struct connection_address *a = entry->address;

    if (atomic_load(&entry->is_evicted))
        return;
    l->counts.open++;
    a->n_counted++;
    if (!is_unjoined(l, entry, now_ms)) {
        a->joined_ms = now_ms;
        return;
    }
    l->counts.unjoined++;
    a->n_unjoined++;
    a->n_silent += is_silent(l, entry, now_ms);
    count_idle(l, entry, now_ms);
}

static void recount(struct connection_limits *l, uint64_t now_ms)
{
    struct connection_entry *next;

    l->counts.open = l->counts.unjoined = 0;
    for (struct connection_address *a = l->addresses; a; a = a->next)
        a->n_counted = a->n_unjoined = a->n_silent = a->n_idle = a->idle_since_ms =
            a->idle_until_ms = 0;
    for (struct connection_entry *entry = l->oldest; entry; entry = next) {
        next = entry->next;
        if (state_of(entry) == ENTRY_CLOSED)
            free_entry(l, entry);
        else
            count_entry(l, entry, now_ms);
    }
}

static void evict(struct connection_limits *l, struct connection_entry *entry, uint64_t now_ms)
{
    bool unjoined = is_unjoined(l, entry, now_ms);

    atomic_store(&entry->is_evicted, true);
    entry->address->n_counted--;
    entry->address->n_unjoined -= unjoined;
    l->counts.open--;
    l->counts.unjoined -= unjoined;
    l->counts.evicted++;
}

void connection_limits_sweep(struct connection_limits *l, uint64_t now_ms)
{
    recount(l, now_ms);
    for (struct connection_entry *entry = l->oldest; entry; entry = entry->next)
        if (is_unjoined(l, entry, now_ms) &&
            silent_ms(entry, now_ms) > silence_max_ms(l, entry))
            evict(l, entry, now_ms);
    free_old_addresses(l, now_ms);
}

/* --- admission --- */

/* Places that this address may use. */
static uint64_t places_for(const struct connection_limits *l,
                           const struct connection_address *a, uint64_t now_ms)
{
    uint64_t all = l->config.connections_max, reserved = all / RESERVED_SHARE;

    return a && has_live_worker(l, a, now_ms) && a->n_counted < reserved ? all : all - reserved;
}

/* Evicts the longest silent of an address for which `may_go` is true; false: there is none. After a recount. */
static bool evict_of(struct connection_limits *l, const struct connection_address *a,
                     bool (*may_go)(const struct connection_limits *l,
                                    const struct connection_entry *entry, uint64_t now_ms),
                     uint64_t now_ms)
{
    struct connection_entry *longest = NULL;

    for (struct connection_entry *entry = l->oldest; entry; entry = entry->next)
        if (entry->address == a && may_go(l, entry, now_ms) &&
            (!longest || active_ms(entry) < active_ms(longest)))
            longest = entry;
    if (longest)
        evict(l, longest, now_ms);
    return longest;
}

static bool is_counted(const struct connection_limits *l, const struct connection_entry *entry,
                       uint64_t now_ms)
{
    (void)l, (void)now_ms;
    return !atomic_load(&entry->is_evicted) && state_of(entry) != ENTRY_CLOSED;
}

/* Evicts one of the address, other than `a`, that has more than half of all places; false: none has. */
static bool evict_of_hog(struct connection_limits *l, const struct connection_address *a,
                         uint64_t now_ms)
{
    for (const struct connection_address *b = l->addresses; b; b = b->next)
        if (b != a && b->n_counted > l->config.connections_max / HOG_SHARE)
            return evict_of(l, b, is_counted, now_ms);
    return false;
}

/* Makes a place for a new connection of `a`, where all are taken: connection_limits.h says of whom. */
static bool evict_for(struct connection_limits *l, const struct connection_address *a,
                      uint64_t now_ms)
{
    const struct connection_address *silent = NULL, *most = l->addresses;
    uint64_t n_own = a ? a->n_unjoined : 0;

    for (const struct connection_address *b = l->addresses; b; b = b->next) {
        if ((b == a || b->n_unjoined > n_own) && b->n_silent > (silent ? silent->n_silent : 0))
            silent = b;
        if (b->n_unjoined > most->n_unjoined)
            most = b;
    }
    if (silent)
        return evict_of(l, silent, is_silent, now_ms);
    if (most && most->n_unjoined > n_own + 1 && evict_of(l, most, is_unjoined, now_ms))
        return true;
    return evict_of_hog(l, a, now_ms);
}

static bool is_full(const struct connection_limits *l, const struct connection_address *a,
                    uint64_t now_ms)
{
    return l->counts.open >= places_for(l, a, now_ms);
}

static bool is_address_full(const struct connection_limits *l,
                            const struct connection_address *a)
{
    return a && a->n_unjoined >= l->config.address_max;
}

static void count_refusal(struct connection_limits *l, struct connection_address *a,
                          uint64_t now_ms)
{
    l->counts.refused++;
    l->refused_ms = now_ms;
    if (a)
        a->refused_ms = now_ms;
}

int connection_limits_admit(struct connection_limits *l, const struct sockaddr_storage *address,
                            uint64_t now_ms, struct err *err)
{
    struct connection_address *a = find_address(l, address);

    if (!is_full(l, a, now_ms) && !is_address_full(l, a))
        return 0;
    recount(l, now_ms);
    if (is_address_full(l, a) && !evict_of(l, a, is_silent, now_ms)) {
        count_refusal(l, a, now_ms);
        return err_set(err, -EMFILE,
                       "connections: %llu of this address have not joined, which is all of "
                       "--connections-per-address",
                       (unsigned long long)a->n_unjoined);
    }
    if (!is_full(l, a, now_ms) || evict_for(l, a, now_ms))
        return 0;
    count_refusal(l, a, now_ms);
    return err_set(err, -EMFILE,
                   "connections: %llu are open, which is all of --connections-max%s",
                   (unsigned long long)l->counts.open,
                   l->counts.open < l->config.connections_max
                       ? " but for what is kept for addresses of live workers"
                       : "");
}

struct connection_entry *connection_limits_open(struct connection_limits *l,
                                                const struct sockaddr_storage *address,
                                                uint64_t now_ms)
{
    struct connection_entry *entry = memory_alloc(sizeof *entry);
    struct connection_address *a = upsert_address(l, address);

    entry->address = a;
    atomic_init(&entry->active_ms, now_ms);
    entry->prev = l->newest;
    if (entry->prev)
        entry->prev->next = entry;
    else
        l->oldest = entry;
    l->newest = entry;
    a->n_open++;
    a->n_counted++;
    a->n_unjoined++;
    l->counts.open++;
    l->counts.unjoined++;
    return entry;
}

/* --- the report --- */

void connection_limits_count(const struct connection_limits *l,
                             struct connection_limits_counts *ret)
{
    *ret = l->counts;
}

uint64_t connection_limits_refused_ms(const struct connection_limits *l)
{
    return l->refused_ms;
}

static struct connection_limits_address describe(const struct connection_address *a)
{
    struct connection_limits_address ret = { .n_open = a->n_counted,
                                             .n_unjoined = a->n_unjoined,
                                             .n_idle = a->n_idle,
                                             .idle_since_ms = a->idle_since_ms,
                                             .idle_until_ms = a->idle_until_ms,
                                             .refused_ms = a->refused_ms };
    char *colon;

    address_text((const struct sockaddr *)&a->key, ret.text);
    colon = strrchr(ret.text, ':');
    if (colon) /* of IPv6 it is a network */
        snprintf(colon, sizeof ret.text - (size_t)(colon - ret.text), "%s",
                 a->key.ss_family == AF_INET6 ? "/64" : "");
    return ret;
}

void connection_limits_each(const struct connection_limits *l, uint64_t now_ms,
                            void (*each)(void *arg, const struct connection_limits_address *a),
                            void *arg)
{
    for (const struct connection_address *a = l->addresses; a; a = a->next) {
        struct connection_limits_address described;

        if (!a->n_idle || (a->n_idle < SHOWN_AT_ONCE &&
                           now_ms - a->idle_since_ms <= CONNECTION_LIMITS_GRACE_MS))
            continue;
        described = describe(a);
        each(arg, &described);
    }
}
