#include "tests/sim/coord.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cluster/claim.h"
#include "server/cluster/coord_mem.h"
#include "tests/sim/node.h"

#define NOTICE_MS 1000u /* coord_etcd.h: a probe */

/* What a client is to be told, on its own loop. */
struct message {
    struct message *next;
    coord_done *done; /* NULL: an event of the watch */
    void *arg;
    struct err err;
    bool has_result;
    struct coord_result result;
    struct coord_event event;
    struct coord_item
        items[8]; /* owned texts: a key for each of three nodes, and that of the cluster */
};

struct client {
    struct coord base;
    struct coord *inner; /* of the service's own; NULL: closed */
    struct process *process;
    uv_async_t async;
    struct message *first, *last;
    struct client *next;
    coord_on_event *on_event;
    void *arg;
    uint64_t away_until_us;
    char wrote[CLAIM_VALUE_MAX]; /* the last claim that it wrote, */
    bool knew; /* when it first did so, that the keys were lost, if they were */
};

/* A call that is under way. */
struct call {
    struct client *client;
    coord_done *done;
    void *arg;
};

static struct {
    struct world *world;
    void (*on_misled)(struct node *n);
    struct coord_mem *m; /* owned */
    struct client *clients;
    uint64_t away_until_us; /* from all */
    uint64_t n_armed;
    struct made {
        char value[CLAIM_VALUE_MAX]; /* "": none */
        int64_t revision;            /* of what is there now; 0: nothing is */
        bool is_older;               /* that is from a copy, and older than `value` */
    } made[PLAN_N_SHARDS_MAX];       /* the claim of each group that was made last */
    bool has_lost_keys;
    uint64_t n_misled;
} service;

static void arm(uint64_t in_us);

static void update_away(void)
{
    const uint64_t now_us = machine_now_us();

    for (const struct client *c = service.clients; c; c = c->next)
        if (c->inner)
            coord_mem_set_away(service.m, coord_mem_number(c->inner),
                               service.away_until_us > now_us || c->away_until_us > now_us);
}

static const struct coord_item *find_claim(uint32_t group)
{
    char key[CLAIM_KEY_MAX];

    claim_key(group, key);
    return coord_mem_find(service.m, key);
}

/* It was cut off since before the keys were lost, or has started since: it cannot know that the copy is older. */
static void note_misled(uint32_t group, const char *value)
{
    for (const struct client *c = service.clients; c; c = c->next)
        if (c->knew && strcmp(c->wrote, value) == 0)
            return;
    world_trace(service.world, "group %u: a claim over an older copy of the service", group);
    service.n_misled++;
    service.on_misled(&service.world->nodes[group]);
}

static void note_claims(void)
{
    for (uint32_t i = 0; i < service.world->plan.n_nodes; i++) {
        const struct coord_item *item = find_claim(i);
        struct made *made = &service.made[i];

        if (item && item->mod_revision != made->revision) {
            if (made->is_older)
                note_misled(i, item->value);
            made->is_older = false;
            snprintf(made->value, sizeof made->value, "%s", item->value);
        }
        made->revision = item ? item->mod_revision : 0;
    }
}

static void on_service(void *owner, uint64_t number, void *data)
{
    uint64_t due_ms;

    (void)owner;
    (void)data;
    if (number != service.n_armed)
        return;
    update_away();
    due_ms = coord_mem_advance(service.m, machine_ms_of(NULL));
    note_claims();
    if (due_ms != UINT64_MAX)
        arm(due_ms > machine_ms_of(NULL) ? (due_ms - machine_ms_of(NULL)) * 1000 : 100);
}

static void arm(uint64_t in_us)
{
    events_in(&machine.events, in_us, on_service, NULL, ++service.n_armed, NULL);
}

/* --- what clients are told --- */

static void take_items(struct message *m, const struct coord_item *items, uint32_t n)
{
    assert(n <= COUNT_OF(m->items));
    for (uint32_t i = 0; i < n; i++) {
        m->items[i] = items[i];
        m->items[i].key = strdup(items[i].key);
        m->items[i].value = items[i].value ? strdup(items[i].value) : NULL;
    }
}

static void post(struct client *c, const struct message *like)
{
    struct message *m;

    if (!c->inner || c->process->is_dead)
        return;
    m = malloc(sizeof *m);
    assert(m);
    *m = *like;
    if (c->first)
        c->last->next = m;
    else
        c->first = m;
    c->last = m;
    uv_async_send(&c->async);
}

static void on_done(void *arg, const struct err *err, const struct coord_result *result)
{
    struct call *call = arg;
    struct message m = {
        .done = call->done, .arg = call->arg, .err = *err, .has_result = result != NULL
    };

    if (result) {
        m.result = *result;
        take_items(&m, result->items, result->n_items);
    }
    post(call->client, &m);
    free(call);
}

static void on_event(void *arg, const struct coord_event *event)
{
    struct message m = { .event = *event };

    if (event->err)
        m.err = *event->err;
    take_items(&m, event->items, event->n_items);
    post(arg, &m);
}

static void report(struct client *c, struct message *m)
{
    m->result.items = m->event.items = m->items;
    m->event.err = m->err.status ? &m->err : NULL;
    if (m->done)
        m->done(m->arg, &m->err, m->has_result ? &m->result : NULL);
    else if (c->on_event)
        c->on_event(c->arg, &m->event);
    for (size_t i = 0; i < COUNT_OF(m->items); i++) {
        free(m->items[i].key);
        free(m->items[i].value);
    }
}

static void on_async(uv_async_t *async)
{
    struct client *c = CONTAINER_OF(async, struct client, async);
    struct message *m;

    while (c->inner && (m = c->first) != NULL) {
        c->first = m->next;
        report(c, m);
        free(m);
    }
}

/* --- its functions --- */

static void put_if(struct coord *coord, const struct coord_write *writes, uint32_t n_writes,
                   uint32_t timeout_ms, coord_done *done, void *arg)
{
    struct client *c = CONTAINER_OF(coord, struct client, base);
    struct call *call = malloc(sizeof *call);

    assert(call);
    *call = (struct call){ c, done, arg };
    world_trace(service.world, "%s claims: %s", c->process->name, writes[0].value);
    if (strcmp(c->wrote, writes[0].value) != 0)
        c->knew = coord_mem_knows_restore(service.m, coord_mem_number(c->inner));
    snprintf(c->wrote, sizeof c->wrote, "%s", writes[0].value);
    c->inner->ops->put_if(c->inner, writes, n_writes, timeout_ms, on_done, call);
    arm(0);
}

static struct coord_watch *watch(struct coord *coord, const char *prefix,
                                 coord_on_event *on_change, void *arg)
{
    struct client *c = CONTAINER_OF(coord, struct client, base);
    struct coord_watch *w = c->inner->ops->watch(c->inner, prefix, on_event, c);

    assert(!c->on_event);
    c->on_event = on_change;
    c->arg = arg;
    arm(0);
    return w;
}

static void unwatch(struct coord_watch *w)
{
    w->coord->ops->unwatch(w);
}

static void close_client(struct coord *coord, void (*on_closed)(void *arg), void *arg)
{
    struct client *c = CONTAINER_OF(coord, struct client, base);

    assert(!on_closed && !arg);
    c->inner->ops->close(c->inner, NULL, NULL);
    c->inner = NULL;
    uv_close((uv_handle_t *)&c->async, NULL);
    arm(0);
}

int coord_open_simulated(const struct coord_options *options, struct uv_loop_s *loop,
                         struct coord **ret, struct err *err)
{
    static const struct coord_ops ops = {
        .put_if = put_if, .watch = watch, .unwatch = unwatch, .close = close_client
    };
    struct client *c = calloc(1, sizeof *c);

    (void)options, (void)err;
    assert(c);
    *c = (struct client){ .base = { &ops },
                          .inner = coord_mem_client(service.m),
                          .process = process_current(),
                          .next = service.clients };
    service.clients = c;
    uv_async_init(loop, &c->async, on_async);
    uv_unref((uv_handle_t *)&c->async);
    *ret = &c->base;
    return 0;
}

/* --- for the schedule --- */

void coord_begin(struct world *w, void (*on_misled)(struct node *n))
{
    service.world = w;
    service.on_misled = on_misled;
    service.clients = NULL;
    service.n_armed = 0;
    service.away_until_us = service.n_misled = 0;
    service.has_lost_keys = false;
    memset(service.made, 0, sizeof service.made);
    service.m = coord_mem_new(w->plan.seed);
    coord_set_bad(true);
}

void coord_end(void)
{
    coord_mem_free(service.m);
    service.m = NULL;
}

void coord_set_bad(bool is_bad)
{
    const struct coord_mem_faults faults = { .delay_ms = is_bad ? 6 : 2,
                                             .late_ms = is_bad ? 200 : 2,
                                             .lost_requests = is_bad ? 50 : 0,
                                             .lost_answers = is_bad ? 100 : 0 };

    coord_mem_set_faults(service.m, &faults);
}

void coord_hold(const struct process *p, uint64_t for_us)
{
    const uint64_t until_us = machine_now_us() + for_us;

    if (!p)
        service.away_until_us = until_us;
    for (struct client *c = service.clients; p && c; c = c->next)
        if (c->process == p)
            c->away_until_us = until_us;
    update_away();
    events_in(&machine.events, for_us + 1, on_service, NULL, service.n_armed, NULL);
}

void coord_go_away(const struct process *p, struct dice *d)
{
    const uint64_t for_us = dice_from(d, 100000, 4000000);

    if (dice_once_in(d, 3)) {
        coord_mem_compact(service.m);
        arm(0);
    }
    world_trace(service.world, "the coordination service is away for %llu us",
                (unsigned long long)for_us);
    coord_hold(dice_once_in(d, 2) ? p : NULL, for_us);
}

/* --- its keys are lost --- */

enum loss { LOSS_DELETED, LOSS_EMPTIED, LOSS_RESTORED };

static void on_loss(void *owner, uint64_t loss, void *data)
{
    static const char *const words[] = { "deleted", "lost", "those of an older copy" };

    (void)owner;
    (void)data;
    if (service.world->is_calm)
        return;
    note_claims();
    world_trace(service.world, "the keys of the coordination service are %s", words[loss]);
    service.has_lost_keys = true;
    if (loss == LOSS_DELETED)
        coord_mem_remove_all(service.m);
    else
        coord_mem_restore(service.m, loss == LOSS_RESTORED, NOTICE_MS);
    for (uint32_t i = 0; i < service.world->plan.n_nodes; i++) {
        const struct coord_item *item = find_claim(i);
        struct made *made = &service.made[i];

        made->revision = item ? item->mod_revision : 0;
        made->is_older = item && strcmp(item->value, made->value) != 0;
    }
    arm(0);
}

void coord_lose_keys(struct dice *d, uint64_t within_us)
{
    const enum loss loss = (enum loss)dice_roll(d, 3);

    if (loss == LOSS_RESTORED)
        coord_mem_copy(service.m);
    events_in(&machine.events, dice_roll(d, within_us), on_loss, NULL, loss, NULL);
}

bool coord_has_lost_keys(void)
{
    return service.m && service.has_lost_keys;
}

uint64_t coord_n_misled(void)
{
    return service.n_misled;
}

/* --- what it has been told --- */

/* The claim of this group, if it names that primary; else NULL. */
static const char *claim_of(uint32_t group, const char *primary)
{
    const char *value = service.made[group].value;
    char name[80];

    snprintf(name, sizeof name, "\"primary\":\"%s\"", primary);
    return strstr(value, name) ? value : NULL;
}

bool coord_names(uint32_t group, const char *primary)
{
    return claim_of(group, primary);
}

bool coord_says_in_sync(uint32_t group, const char *primary)
{
    const char *value = claim_of(group, primary);

    return value && strstr(value, "\"in_sync\":\"yes\"");
}
