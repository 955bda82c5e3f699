#include "server/net/connection_limits.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define SHOWN_AT_ONCE 16u  /* so many that are idle are reported before their grace is over */
#define RESERVED_SHARE 16u /* one of so many places is for addresses of live workers */

struct connection_address {
    struct connection_address *next;
    struct sockaddr_storage key; /* its port is 0 */
    uint64_t n_open;             /* entries that point here */
    uint64_t n_counted;          /* of these, neither closed nor evicted */
    uint64_t n_unjoined, n_idle; /* of n_counted; idle: has not asked either */
    uint64_t idle_since_ms;      /* of the oldest that is idle; 0: none */
    uint64_t joined_ms;          /* when one was last seen joined; 0: never */
    uint64_t refused_ms;         /* when one was last refused; 0: never */
};

struct connection_limits {
    struct connection_limits_config config;
    struct connection_entry *oldest, *newest; /* owned */
    struct connection_address *addresses;     /* owned */
    uint64_t refused_ms;                      /* when one was last refused; 0: never */
    struct connection_limits_counts
        counts; /* as of the last sweep, and what was opened since */
};

struct connection_limits *connection_limits_new(const struct connection_limits_config *config)
{
    struct connection_limits *l = memory_alloc(sizeof *l);

    l->config = *config;
    if (!l->config.address_max) {
        l->config.address_max = config->connections_max / 2;
        if (l->config.address_max < CONNECTION_LIMITS_ADDRESS_MIN)
            l->config.address_max = CONNECTION_LIMITS_ADDRESS_MIN;
    }
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

/* The host alone; an IPv4 address in IPv6's clothes is that IPv4 address. */
static struct sockaddr_storage key_of(const struct sockaddr_storage *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;
    struct sockaddr_storage key = { .ss_family = address->ss_family };

    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        key.ss_family = AF_INET;
        memcpy(&((struct sockaddr_in *)&key)->sin_addr, &v6->sin6_addr.s6_addr[12], 4);
    } else if (address->ss_family == AF_INET) {
        ((struct sockaddr_in *)&key)->sin_addr = v4->sin_addr;
    } else if (address->ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)&key)->sin6_addr = v6->sin6_addr;
    }
    return key;
}

/* NULL: it has no connection, and had no worker a lease ago. */
static struct connection_address *find_address(const struct connection_limits *l,
                                               const struct sockaddr_storage *address)
{
    struct sockaddr_storage key = key_of(address);
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
    *a = (struct connection_address){ .key = key_of(address), .next = l->addresses };
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

static bool is_idle(const struct connection_entry *entry)
{
    return state_of(entry) == ENTRY_GREETED && !atomic_load(&entry->is_evicted);
}

static void count_entry(struct connection_limits *l, const struct connection_entry *entry,
                        uint64_t now_ms)
{
    struct connection_address *a = entry->address;

    if (atomic_load(&entry->is_evicted))
        return;
    l->counts.open++;
    a->n_counted++;
    if (state_of(entry) == ENTRY_JOINED) {
        a->joined_ms = now_ms;
        return;
    }
    l->counts.unjoined++;
    a->n_unjoined++;
    if (!is_idle(entry))
        return;
    a->n_idle++;
    if (!a->idle_since_ms)
        a->idle_since_ms = entry->since_ms;
}

static void recount(struct connection_limits *l, uint64_t now_ms)
{
    struct connection_entry *next;

    l->counts.open = l->counts.unjoined = 0;
    for (struct connection_address *a = l->addresses; a; a = a->next)
        a->n_counted = a->n_unjoined = a->n_idle = a->idle_since_ms = 0;
    for (struct connection_entry *entry = l->oldest; entry; entry = next) {
        next = entry->next;
        if (state_of(entry) == ENTRY_CLOSED)
            free_entry(l, entry);
        else
            count_entry(l, entry, now_ms);
    }
}

static void evict(struct connection_limits *l, struct connection_entry *entry)
{
    atomic_store(&entry->is_evicted, true);
    entry->address->n_counted--;
    entry->address->n_unjoined--;
    entry->address->n_idle--;
    l->counts.open--;
    l->counts.unjoined--;
    l->counts.evicted++;
}

void connection_limits_sweep(struct connection_limits *l, uint64_t now_ms)
{
    recount(l, now_ms);
    for (struct connection_entry *entry = l->oldest; entry; entry = entry->next) {
        if (now_ms - entry->since_ms <= l->config.idle_ms)
            break;
        if (is_idle(entry))
            evict(l, entry);
    }
    free_old_addresses(l, now_ms);
}

/* --- admission --- */

/* Places that this address may use. */
static uint64_t places_for(const struct connection_limits *l,
                           const struct connection_address *a, uint64_t now_ms)
{
    uint64_t all = l->config.connections_max;

    return a && has_live_worker(l, a, now_ms) ? all : all - all / RESERVED_SHARE;
}

static struct connection_address *greediest(const struct connection_limits *l)
{
    struct connection_address *most = l->addresses;

    for (struct connection_address *a = l->addresses; a; a = a->next)
        if (a->n_idle > most->n_idle)
            most = a;
    return most;
}

/* Evicts the oldest of an address that is idle; false: there is none. After a recount. */
static bool evict_of(struct connection_limits *l, const struct connection_address *a,
                     uint64_t grace_ms, uint64_t now_ms)
{
    struct connection_entry *entry = a && a->n_idle ? l->oldest : NULL;

    while (entry && (entry->address != a || !is_idle(entry)))
        entry = entry->next;
    if (!entry || now_ms - entry->since_ms < grace_ms)
        return false;
    evict(l, entry);
    return true;
}

/* Makes a place for a new connection of `a`, where all are taken: of the address with the most that are idle, and at
 * once if that has more than `a`. */
static bool evict_for(struct connection_limits *l, const struct connection_address *a,
                      uint64_t now_ms)
{
    const struct connection_address *most = greediest(l);
    bool has_more = most && most->n_idle > (a ? a->n_unjoined : 0) + 1;

    return evict_of(l, most, has_more ? 0 : CONNECTION_LIMITS_GRACE_MS, now_ms);
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
    if (is_address_full(l, a) && !evict_of(l, a, CONNECTION_LIMITS_GRACE_MS, now_ms)) {
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
    entry->since_ms = now_ms;
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
                                             .refused_ms = a->refused_ms };
    char *colon;

    address_text((const struct sockaddr *)&a->key, ret.text);
    colon = strrchr(ret.text, ':');
    if (colon)
        *colon = '\0';
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
