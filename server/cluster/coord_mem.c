#include "server/cluster/coord_mem.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"

#define RETRY_MS 50u /* of a watch whose client is cut off */
#define AWAY_MS 1000u

enum call_kind { CALL_GET, CALL_PUT_IF, CALL_GRANT, CALL_KEEP, CALL_REVOKE };
enum call_state { CALL_REQUESTS, CALL_ANSWERS, CALL_IS_LOST };

struct client {
    struct coord base;
    struct coord_mem *m; /* borrowed */
    struct client *next;
    uint32_t number;
    bool is_away, is_closing;
    uint64_t away_since_ms;
    void (*on_closed)(void *arg);
    void *arg; /* borrowed */
};

/* The service's part of a call may outlive the caller's, which ends at its deadline. */
struct call {
    struct client *client; /* borrowed */
    struct call *next;
    enum call_kind kind;
    enum call_state state;
    uint64_t due_ms, deadline_ms, sent_ms;
    char *key; /* owned; of get */
    bool is_prefix;
    struct coord_write *writes; /* owned, with their texts */
    uint32_t n_writes, ttl_ms;
    int64_t lease;
    int status;                 /* of the answer */
    struct coord_result result; /* its items: */
    struct coord_item *items;   /* owned */
    coord_done *done;           /* NULL: was called */
    void *arg;                  /* borrowed */
};

struct watch {
    struct coord_watch base;
    struct client *client; /* borrowed */
    struct watch *next;
    char *prefix;                /* owned */
    int64_t from;                /* 0: all keys first */
    uint64_t first_store, store; /* that it heard of first, and last; 0: none */
    uint64_t due_ms;             /* UINT64_MAX: nothing to report */
    bool is_reported_away, is_ended;
    coord_on_event *on_event;
    void *arg; /* borrowed */
};

struct lease {
    struct lease *next;
    int64_t id;
    uint64_t ttl_ms, ends_ms;
};

struct change {
    struct coord_item item; /* owned */
    bool is_removed;
};

struct coord_mem {
    uint64_t seed, n_draws, now_ms;
    struct coord_mem_faults faults;
    uint64_t store; /* which one it is: 1, and one more each time that it is restored */
    int64_t revision, compacted;
    struct coord_item *kept; /* owned: the copy */
    uint32_t n_kept;
    int64_t kept_revision;    /* 0: there is none */
    struct coord_item *items; /* owned, in the order of keys */
    uint32_t n_items, cap_items;
    struct change *changes; /* owned, in the order of revisions, after `compacted` */
    uint32_t n_changes, cap_changes;
    struct client *clients; /* owned */
    uint32_t n_clients;
    struct call *calls;    /* owned */
    struct watch *watches; /* owned */
    struct lease *leases;  /* owned */
    int64_t last_lease;
};

static uint64_t draw(struct coord_mem *m, uint64_t below)
{
    return hash_mix2(m->seed, m->n_draws++) % below;
}

static uint64_t draw_delay(struct coord_mem *m)
{
    const uint64_t most =
        draw(m, 16) == 0 && m->faults.late_ms ? m->faults.late_ms : m->faults.delay_ms;

    return draw(m, most + 1);
}

static char *copy(const char *text)
{
    return text ? memory_need(strdup(text)) : NULL;
}

static struct coord_item copy_item(const struct coord_item *item)
{
    struct coord_item made = *item;

    made.key = copy(item->key);
    made.value = copy(item->value);
    return made;
}

static void free_items(struct coord_item *items, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        free(items[i].key);
        free(items[i].value);
    }
    free(items);
}

/* --- the store --- */

static struct coord_item *find(const struct coord_mem *m, const char *key)
{
    for (uint32_t i = 0; i < m->n_items; i++)
        if (strcmp(m->items[i].key, key) == 0)
            return &m->items[i];
    return NULL;
}

const struct coord_item *coord_mem_find(const struct coord_mem *m, const char *key)
{
    return find(m, key);
}

static void *grow(void *array, uint32_t n, uint32_t *cap, size_t bytes)
{
    if (n < *cap)
        return array;
    *cap = *cap ? 2 * *cap : 8;
    return memory_need(realloc(array, *cap * bytes));
}

static void note_change(struct coord_mem *m, const struct coord_item *item, bool is_removed)
{
    m->changes = grow(m->changes, m->n_changes, &m->cap_changes, sizeof *m->changes);
    m->changes[m->n_changes++] = (struct change){ copy_item(item), is_removed };
    for (struct watch *w = m->watches; w; w = w->next)
        if (strncmp(item->key, w->prefix, strlen(w->prefix)) == 0 && w->due_ms == UINT64_MAX)
            w->due_ms = m->now_ms + draw_delay(m);
}

static void put(struct coord_mem *m, const struct coord_write *w)
{
    struct coord_item *item = find(m, w->key);
    uint32_t at = 0;

    if (!item) {
        m->items = grow(m->items, m->n_items, &m->cap_items, sizeof *m->items);
        while (at < m->n_items && strcmp(m->items[at].key, w->key) < 0)
            at++;
        item = &m->items[at];
        memmove(item + 1, item, (m->n_items++ - at) * sizeof *item);
        *item = (struct coord_item){ .key = copy(w->key) };
    }
    free(item->value);
    item->value = copy(w->value);
    item->lease = w->lease;
    item->mod_revision = m->revision;
    note_change(m, item, false);
}

static void remove_item(struct coord_mem *m, struct coord_item *item)
{
    const size_t behind = (size_t)(m->items + m->n_items - item) - 1;

    item->mod_revision = m->revision;
    note_change(m, item, true);
    free(item->key);
    free(item->value);
    memmove(item, item + 1, behind * sizeof *item);
    m->n_items--;
}

static void end_lease(struct coord_mem *m, int64_t id)
{
    bool is_first = true;

    for (uint32_t i = 0; i < m->n_items;) {
        if (m->items[i].lease != id) {
            i++;
            continue;
        }
        m->revision += is_first;
        is_first = false;
        remove_item(m, &m->items[i]);
    }
    for (struct lease **at = &m->leases; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            struct lease *lease = *at;

            *at = lease->next;
            free(lease);
            return;
        }
}

static struct lease *find_lease(const struct coord_mem *m, int64_t id)
{
    for (struct lease *l = m->leases; l; l = l->next)
        if (l->id == id)
            return l;
    return NULL;
}

void coord_mem_compact(struct coord_mem *m)
{
    for (uint32_t i = 0; i < m->n_changes; i++) {
        free(m->changes[i].item.key);
        free(m->changes[i].item.value);
    }
    m->n_changes = 0;
    m->compacted = m->revision;
}

/* --- the store is lost --- */

void coord_mem_remove_all(struct coord_mem *m)
{
    m->revision++;
    while (m->n_items)
        remove_item(m, &m->items[m->n_items - 1]);
}

static void drop_copy(struct coord_mem *m)
{
    free_items(m->kept, m->n_kept);
    m->kept = NULL;
    m->n_kept = 0;
    m->kept_revision = 0;
}

static struct coord_item *copy_items(const struct coord_item *items, uint32_t n)
{
    struct coord_item *made = memory_alloc((n + 1) * sizeof *made);

    for (uint32_t i = 0; i < n; i++) {
        assert(!items[i].lease);
        made[i] = copy_item(&items[i]);
    }
    return made;
}

void coord_mem_copy(struct coord_mem *m)
{
    drop_copy(m);
    m->kept = copy_items(m->items, m->n_items);
    m->n_kept = m->n_items;
    m->kept_revision = m->revision;
}

void coord_mem_restore(struct coord_mem *m, bool from_copy, uint32_t notice_ms)
{
    if (!from_copy)
        drop_copy(m);
    free_items(m->items, m->n_items);
    m->items = copy_items(m->kept, m->n_kept);
    m->n_items = m->n_kept;
    m->cap_items = m->n_kept + 1;
    m->revision = m->kept_revision ? m->kept_revision : 1;
    m->store++;
    coord_mem_compact(m);
    for (struct call *k = m->calls; k; k = k->next)
        k->state = CALL_IS_LOST;
    for (struct watch *w = m->watches; w; w = w->next)
        w->due_ms = m->now_ms + draw(m, notice_ms + 1);
}

bool coord_mem_knows_restore(const struct coord_mem *m, uint32_t client)
{
    for (const struct watch *w = m->watches; w; w = w->next)
        if (w->client->number == client && !w->is_ended &&
            (w->store != m->store || w->first_store == m->store))
            return false;
    return true;
}

/* --- what a request does --- */

static void add_result(struct call *k, const struct coord_item *item)
{
    k->items = memory_need(realloc(k->items, (k->result.n_items + 1) * sizeof *k->items));
    k->items[k->result.n_items++] = copy_item(item);
    k->result.items = k->items;
}

static void do_get(struct coord_mem *m, struct call *k)
{
    for (uint32_t i = 0; i < m->n_items; i++)
        if (k->is_prefix ? strncmp(m->items[i].key, k->key, strlen(k->key)) == 0
                         : strcmp(m->items[i].key, k->key) == 0)
            add_result(k, &m->items[i]);
}

static void do_put_if(struct coord_mem *m, struct call *k)
{
    bool is_equal = true;

    for (uint32_t i = 0; i < k->n_writes; i++) {
        const struct coord_item *item = find(m, k->writes[i].key);

        if ((item ? item->mod_revision : 0) != k->writes[i].if_revision ||
            (item && k->writes[i].if_value && strcmp(item->value, k->writes[i].if_value) != 0))
            is_equal = false;
        if (k->writes[i].change == COORD_PUT && k->writes[i].lease &&
            !find_lease(m, k->writes[i].lease))
            k->status = -ENOENT;
    }
    if (k->status)
        return;
    k->result.is_made = is_equal;
    if (!is_equal) {
        for (uint32_t i = 0; i < k->n_writes; i++) {
            const struct coord_item *item = find(m, k->writes[i].key);

            if (item)
                add_result(k, item);
        }
        return;
    }
    m->revision++;
    for (uint32_t i = 0; i < k->n_writes; i++) {
        struct coord_item *item = find(m, k->writes[i].key);

        if (k->writes[i].change == COORD_PUT)
            put(m, &k->writes[i]);
        else if (k->writes[i].change == COORD_REMOVE && item)
            remove_item(m, item);
    }
}

static void do_lease(struct coord_mem *m, struct call *k)
{
    struct lease *lease = find_lease(m, k->lease);

    if (k->kind == CALL_REVOKE) {
        end_lease(m, k->lease);
        return;
    }
    if (k->kind == CALL_GRANT) {
        lease = memory_alloc(sizeof *lease);
        lease->id = k->lease = ++m->last_lease;
        lease->ttl_ms = k->ttl_ms;
        lease->next = m->leases;
        m->leases = lease;
    }
    if (!lease) {
        k->status = -ENOENT;
        return;
    }
    lease->ends_ms = m->now_ms + lease->ttl_ms;
    k->result.lease = lease->id;
    k->result.ttl_ms = lease->ttl_ms;
}

static void do_request(struct coord_mem *m, struct call *k)
{
    if (k->kind == CALL_GET)
        do_get(m, k);
    else if (k->kind == CALL_PUT_IF)
        do_put_if(m, k);
    else
        do_lease(m, k);
    k->result.revision = m->revision;
    k->result.sent_ms = k->sent_ms;
}

/* --- calls --- */

static void call_free(struct call *k)
{
    for (uint32_t i = 0; i < k->n_writes; i++) {
        free((char *)k->writes[i].key);
        free((char *)k->writes[i].value);
        free((char *)k->writes[i].if_value);
    }
    free(k->writes);
    free(k->key);
    free_items(k->items, k->result.n_items);
    free(k);
}

static void finish(struct call *k, int status)
{
    coord_done *done = k->done;
    struct err err = { 0 };

    k->done = NULL;
    if (!done)
        return;
    if (status)
        err_set(&err, status, "the store in memory: %s", status_text(status));
    done(k->arg, &err, status ? NULL : &k->result);
}

/* Its next step. Returns false when there is none. */
static bool call_step(struct coord_mem *m, struct call *k)
{
    const bool is_away = k->client->is_away;

    if (k->state == CALL_REQUESTS) {
        if (is_away || draw(m, 1000) < m->faults.lost_requests) {
            k->state = CALL_IS_LOST;
            return true;
        }
        do_request(m, k);
        k->state = draw(m, 1000) < m->faults.lost_answers ? CALL_IS_LOST : CALL_ANSWERS;
        k->due_ms = m->now_ms + draw_delay(m);
        return true;
    }
    if (k->state == CALL_ANSWERS && !is_away) {
        finish(k, k->status);
        return false;
    }
    k->state = CALL_IS_LOST;
    return true;
}

static struct coord_mem *store_of(struct coord *c)
{
    return CONTAINER_OF(c, struct client, base)->m;
}

static struct call *call_new(struct coord *c, enum call_kind kind, uint32_t timeout_ms,
                             coord_done *done, void *arg)
{
    struct coord_mem *m = store_of(c);
    struct call *k = memory_alloc(sizeof *k), **at = &m->calls;

    k->client = CONTAINER_OF(c, struct client, base);
    k->kind = kind;
    k->sent_ms = m->now_ms;
    k->due_ms = m->now_ms + draw_delay(m);
    k->deadline_ms = m->now_ms + timeout_ms;
    k->done = done;
    k->arg = arg;
    if (k->client->is_away) /* not: is away when it would come */
        k->state = CALL_IS_LOST;
    while (*at)
        at = &(*at)->next;
    *at = k;
    return k;
}

static void get(struct coord *c, const char *key, bool is_prefix, uint32_t timeout_ms,
                coord_done *done, void *arg)
{
    struct call *k = call_new(c, CALL_GET, timeout_ms, done, arg);

    k->key = copy(key);
    k->is_prefix = is_prefix;
}

static void put_if(struct coord *c, const struct coord_write *writes, uint32_t n_writes,
                   uint32_t timeout_ms, coord_done *done, void *arg)
{
    struct call *k = call_new(c, CALL_PUT_IF, timeout_ms, done, arg);

    assert(n_writes > 0 && n_writes <= COORD_TXN_MAX);
    k->writes = memory_alloc(n_writes * sizeof *writes);
    k->n_writes = n_writes;
    for (uint32_t i = 0; i < n_writes; i++) {
        k->writes[i] = writes[i];
        k->writes[i].key = copy(writes[i].key);
        k->writes[i].value = copy(writes[i].value);
        k->writes[i].if_value = copy(writes[i].if_value);
    }
}

static void grant(struct coord *c, uint32_t ttl_ms, uint32_t timeout_ms, coord_done *done,
                  void *arg)
{
    call_new(c, CALL_GRANT, timeout_ms, done, arg)->ttl_ms = ttl_ms;
}

static void keep(struct coord *c, int64_t lease, uint32_t timeout_ms, coord_done *done,
                 void *arg)
{
    call_new(c, CALL_KEEP, timeout_ms, done, arg)->lease = lease;
}

static void revoke_lease(struct coord *c, int64_t lease, uint32_t timeout_ms, coord_done *done,
                         void *arg)
{
    call_new(c, CALL_REVOKE, timeout_ms, done, arg)->lease = lease;
}

/* --- watches --- */

static void report(struct watch *w, enum coord_event_kind kind, const struct coord_item *items,
                   uint32_t n_items, int64_t revision, const struct err *err)
{
    const struct coord_event event = { .kind = kind,
                                       .revision = revision,
                                       .items = items,
                                       .n_items = n_items,
                                       .err = err && err->status ? err : NULL };

    if (!w->is_ended)
        w->on_event(w->arg, &event);
}

static void report_all(struct coord_mem *m, struct watch *w)
{
    struct coord_item *below = memory_alloc((m->n_items + 1) * sizeof *below);
    struct err err = { 0 };
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_items; i++)
        if (strncmp(m->items[i].key, w->prefix, strlen(w->prefix)) == 0)
            below[n++] = copy_item(&m->items[i]);
    if (w->store && w->store != m->store)
        err_set(&err, PS_ECLUSTER, "the store in memory was restored or replaced");
    w->from = m->revision + 1;
    w->store = m->store;
    w->first_store = w->first_store ? w->first_store : m->store;
    report(w, COORD_ALL, below, n, m->revision, &err);
    free_items(below, n);
}

static void report_changes(struct coord_mem *m, struct watch *w)
{
    /* What the events lead to comes after them: no call changes the store at once. */
    for (uint32_t i = 0; i < m->n_changes; i++) {
        const struct change *c = &m->changes[i];

        if (c->item.mod_revision < w->from ||
            strncmp(c->item.key, w->prefix, strlen(w->prefix)) != 0)
            continue;
        report(w, c->is_removed ? COORD_REMOVED : COORD_CHANGED, &c->item, 1,
               c->item.mod_revision, NULL);
    }
    w->from = m->revision + 1;
}

static void watch_step(struct coord_mem *m, struct watch *w)
{
    struct err err = { 0 };

    if (w->client->is_away) {
        w->due_ms = m->now_ms + RETRY_MS;
        if (!w->is_reported_away && m->now_ms - w->client->away_since_ms >= AWAY_MS) {
            w->is_reported_away = true;
            err_set(&err, -ETIMEDOUT, "the store in memory is away");
            report(w, COORD_AWAY, NULL, 0, 0, &err);
        }
        return;
    }
    w->due_ms = UINT64_MAX;
    if (w->is_reported_away) {
        w->is_reported_away = false;
        report(w, COORD_BACK, NULL, 0, 0, NULL);
    }
    if (w->from == 0 || w->from <= m->compacted || w->store != m->store)
        report_all(m, w);
    else
        report_changes(m, w);
}

static struct coord_watch *watch(struct coord *c, const char *prefix, coord_on_event *on_event,
                                 void *arg)
{
    struct coord_mem *m = store_of(c);
    struct watch *w = memory_alloc(sizeof *w);

    w->base.coord = c;
    w->client = CONTAINER_OF(c, struct client, base);
    w->prefix = copy(prefix);
    w->due_ms = m->now_ms + draw_delay(m);
    w->on_event = on_event;
    w->arg = arg;
    w->next = m->watches;
    m->watches = w;
    return &w->base;
}

static void unwatch(struct coord_watch *w)
{
    CONTAINER_OF(w, struct watch, base)->is_ended = true;
}

/* --- clients and time --- */

static void close_client(struct coord *c, void (*on_closed)(void *arg), void *arg)
{
    struct client *client = CONTAINER_OF(c, struct client, base);

    client->is_closing = true;
    client->on_closed = on_closed;
    client->arg = arg;
}

static const struct coord_ops ops = {
    .get = get,
    .put_if = put_if,
    .grant = grant,
    .keep = keep,
    .revoke = revoke_lease,
    .watch = watch,
    .unwatch = unwatch,
    .close = close_client,
};

struct coord *coord_mem_client(struct coord_mem *m)
{
    struct client *client = memory_alloc(sizeof *client);

    client->base.ops = &ops;
    client->m = m;
    client->number = m->n_clients++;
    client->next = m->clients;
    m->clients = client;
    return &client->base;
}

uint32_t coord_mem_number(const struct coord *c)
{
    const struct client *client = (const struct client *)(const void *)c; /* base comes first */

    return client->number;
}

void coord_mem_set_away(struct coord_mem *m, uint32_t client, bool is_away)
{
    for (struct client *c = m->clients; c; c = c->next)
        if (c->number == client && c->is_away != is_away) {
            c->is_away = is_away;
            c->away_since_ms = m->now_ms;
            for (struct call *k = m->calls; k; k = k->next)
                if (k->client == c)
                    k->state = CALL_IS_LOST;
            for (struct watch *w = m->watches; w; w = w->next)
                if (w->client == c && w->due_ms > m->now_ms + RETRY_MS)
                    w->due_ms = m->now_ms + RETRY_MS;
        }
}

void coord_mem_set_faults(struct coord_mem *m, const struct coord_mem_faults *faults)
{
    m->faults = *faults;
}

struct coord_mem *coord_mem_new(uint64_t seed)
{
    struct coord_mem *m = memory_alloc(sizeof *m);

    m->seed = seed;
    m->store = 1;
    m->revision = 1;
    return m;
}

static void close_clients(struct coord_mem *m)
{
    struct client **at = &m->clients;

    while (*at) {
        struct client *c = *at;

        if (!c->is_closing) {
            at = &c->next;
            continue;
        }
        for (struct call *k = m->calls; k; k = k->next)
            if (k->client == c)
                finish(k, -ECANCELED);
        for (struct call **k = &m->calls; *k;) {
            struct call *call = *k;

            if (call->client == c) { /* a request on its way is lost with its client */
                *k = call->next;
                call_free(call);
            } else
                k = &call->next;
        }
        for (struct watch *w = m->watches; w; w = w->next)
            w->is_ended = w->is_ended || w->client == c;
        *at = c->next;
        if (c->on_closed)
            c->on_closed(c->arg);
        free(c);
    }
}

static void sweep_watches(struct coord_mem *m)
{
    struct watch **at = &m->watches;

    while (*at) {
        struct watch *w = *at;

        if (w->is_ended) {
            *at = w->next;
            free(w->prefix);
            free(w);
        } else
            at = &w->next;
    }
}

void coord_mem_free(struct coord_mem *m)
{
    for (struct call *k = m->calls; k; k = k->next)
        k->done = NULL;
    for (struct client *c = m->clients; c; c = c->next)
        c->is_closing = true;
    close_clients(m);
    sweep_watches(m);
    coord_mem_compact(m);
    free(m->changes);
    free_items(m->items, m->n_items);
    drop_copy(m);
    while (m->leases) {
        struct lease *next = m->leases->next;

        free(m->leases);
        m->leases = next;
    }
    free(m);
}

/* What happens next: of calls, watches and leases the earliest. */
struct next {
    uint64_t ms;
    struct call *call;
    struct watch *watch;
    struct lease *lease;
};

static struct next find_next(struct coord_mem *m)
{
    struct next next = { .ms = UINT64_MAX };

    for (struct call *k = m->calls; k; k = k->next) {
        uint64_t ms = k->state == CALL_IS_LOST ? UINT64_MAX : k->due_ms;

        if (k->done && k->deadline_ms < ms)
            ms = k->deadline_ms;
        if (ms < next.ms)
            next = (struct next){ .ms = ms, .call = k };
    }
    for (struct watch *w = m->watches; w; w = w->next)
        if (!w->is_ended && w->due_ms < next.ms)
            next = (struct next){ .ms = w->due_ms, .watch = w };
    for (struct lease *l = m->leases; l; l = l->next)
        if (l->ends_ms < next.ms)
            next = (struct next){ .ms = l->ends_ms, .lease = l };
    return next;
}

static void call_remove(struct coord_mem *m, struct call *k)
{
    struct call **at = &m->calls;

    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    call_free(k);
}

static void call_advance(struct coord_mem *m, struct call *k)
{
    bool goes_on = true;

    if (k->done && k->deadline_ms <= m->now_ms)
        finish(k, PS_EDEADLINE);
    else
        goes_on = call_step(m, k);
    if (!goes_on || (!k->done && k->state != CALL_REQUESTS))
        call_remove(m, k);
}

uint64_t coord_mem_advance(struct coord_mem *m, uint64_t now_ms)
{
    struct next next;

    assert(now_ms >= m->now_ms);
    close_clients(m);
    while ((next = find_next(m)).ms <= now_ms) {
        if (next.ms > m->now_ms)
            m->now_ms = next.ms;
        if (next.call)
            call_advance(m, next.call);
        else if (next.watch)
            watch_step(m, next.watch);
        else
            end_lease(m, next.lease->id);
    }
    m->now_ms = now_ms;
    sweep_watches(m);
    return next.ms;
}
