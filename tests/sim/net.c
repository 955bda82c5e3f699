#include "tests/sim/net.h"

#include <assert.h>
#include <stdlib.h>

/* One message on its way. */
struct parcel {
    struct net_connection *to;
    struct message message;
};

void net_init(struct net *n, struct events *events, const struct net_events *handlers,
              void *owner, struct dice dice, uint32_t delay_us)
{
    *n = (struct net){ .events = events,
                       .handlers = handlers,
                       .owner = owner,
                       .dice = dice,
                       .delay_us = delay_us };
}

void net_deinit(struct net *n)
{
    for (uint32_t i = 0; i < n->n; i++)
        free(n->connections[i]);
    free(n->connections);
}

struct net_connection *net_dial(struct net *n, uint32_t worker, uint32_t shard)
{
    struct net_connection *c = calloc(1, sizeof *c);

    n->connections = realloc(n->connections, (n->n + 1) * sizeof(struct net_connection *));
    assert(c && n->connections);
    c->id = n->n;
    c->worker = worker;
    c->shard = shard;
    c->at_worker.is_open = c->at_shard.is_open = true;
    n->connections[n->n++] = c;
    return c;
}

static uint64_t some_time(struct net *n)
{
    uint64_t most = dice_once_in(&n->dice, 30) ? 10 * (uint64_t)n->delay_us : n->delay_us;

    return dice_from(&n->dice, most / 4, most);
}

/* --- ends --- */

static void on_worker_end(void *owner, uint64_t id, void *data)
{
    struct net *n = owner;
    struct net_connection *c = n->connections[id];

    (void)data;
    if (!c->at_worker.is_open)
        return;
    c->at_worker.is_open = false;
    n->handlers->on_worker_closed(n->owner, c);
}

static void on_shard_end(void *owner, uint64_t id, void *data)
{
    struct net *n = owner;
    struct net_connection *c = n->connections[id];

    (void)data;
    if (!c->at_shard.is_open)
        return;
    c->at_shard.is_open = false;
    if (c->life && c->life == n->handlers->life(n->owner, c->shard))
        n->handlers->on_shard_closed(n->owner, c);
}

void net_hang_up(struct net *n, struct net_connection *c)
{
    if (!c->at_worker.is_open)
        return;
    c->at_worker.is_open = false;
    events_in(n->events, dice_roll(&n->dice, 8 * (uint64_t)n->delay_us), on_shard_end, n, c->id,
              NULL);
}

void net_cut(struct net *n, struct net_connection *c)
{
    events_in(n->events, dice_roll(&n->dice, 8 * (uint64_t)n->delay_us), on_shard_end, n, c->id,
              NULL);
    events_in(n->events, dice_roll(&n->dice, 8 * (uint64_t)n->delay_us), on_worker_end, n,
              c->id, NULL);
}

void net_reset(struct net *n, uint32_t shard)
{
    for (uint32_t i = 0; i < n->n; i++) {
        struct net_connection *c = n->connections[i];

        if (c->shard != shard || !c->life || !c->at_shard.is_open)
            continue;
        c->at_shard.is_open = false;
        events_in(n->events, some_time(n), on_worker_end, n, c->id, NULL);
    }
}

/* --- messages --- */

static void on_request(void *owner, uint64_t number, void *data)
{
    struct net *n = owner;
    struct parcel *p = data;
    struct net_connection *c = p->to;
    uint64_t life = n->handlers->life(n->owner, c->shard);

    (void)number;
    if (!c->life)
        c->life = life;
    if (c->at_shard.is_open && life && c->life == life)
        n->handlers->on_request(n->owner, c, &p->message);
    else
        events_in(n->events, some_time(n), on_worker_end, n, c->id, NULL);
}

static void on_reply(void *owner, uint64_t number, void *data)
{
    struct net *n = owner;
    struct parcel *p = data;

    (void)number;
    if (p->to->at_worker.is_open)
        n->handlers->on_reply(n->owner, p->to, &p->message);
}

static void send(struct net *n, struct net_connection *c, struct connection_end *end,
                 const struct message *m, event_fn run)
{
    struct parcel *p = malloc(sizeof *p);
    uint64_t at_us = n->events->now_us + some_time(n);

    assert(p);
    *p = (struct parcel){ c, *m };
    if (at_us < end->last_us)
        at_us = end->last_us;
    end->last_us = at_us;
    events_in(n->events, at_us - n->events->now_us, run, n, 0, p);
}

void net_ask(struct net *n, struct net_connection *c, const struct message *m)
{
    if (c->at_worker.is_open)
        send(n, c, &c->at_shard, m, on_request);
}

void net_answer(struct net *n, struct net_connection *c, const struct message *m)
{
    if (c->at_shard.is_open)
        send(n, c, &c->at_worker, m, on_reply);
}
