#include "tests/sim/worker.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void go_on(struct trainer *t);

static uint32_t n_links(const struct trainer *t)
{
    return t->world->plan.n_shards;
}

static bool is_frozen(const struct trainer *t)
{
    return t->world->events.now_us < t->frozen_until_us;
}

static uint32_t shard_of(const struct trainer *t, const struct link *l)
{
    return (uint32_t)(l - t->links);
}

/* --- a link comes and goes --- */

static void dial(void *owner, uint64_t number, void *data)
{
    static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "h" };
    struct trainer *t = owner;
    struct link *l = &t->links[number >> 32];
    struct message join = { .type = MESSAGE_JOIN,
                            .incarnation = t->incarnation,
                            .clock = l->n_backlog ? l->backlog[0]->clock : t->clock,
                            .last = l->last_acked,
                            .name = names[t->n_processes % COUNT_OF(names)] };

    (void)data;
    if (l->phase != LINK_AWAY || (uint32_t)number != (uint32_t)l->dial)
        return;
    if (is_frozen(t)) {
        events_in(&t->world->events, t->frozen_until_us - t->world->events.now_us, dial, t,
                  number, NULL);
        return;
    }
    l->phase = LINK_JOINING;
    l->connection = net_dial(&t->world->net, t->rank, shard_of(t, l));
    net_ask(&t->world->net, l->connection, &join);
}

static void dial_later(struct trainer *t, struct link *l)
{
    struct world *w = t->world;
    uint64_t number = (uint64_t)shard_of(t, l) << 32 | (uint32_t)++l->dial;

    events_in(&w->events, dice_from(&w->dice, 200, 4000 + 4 * (uint64_t)w->plan.network_us),
              dial, t, number, NULL);
}

static void over(struct trainer *t, struct link *l)
{
    if (l->connection)
        net_hang_up(&t->world->net, l->connection);
    l->connection = NULL;
    l->phase = LINK_OVER;
    for (uint32_t i = 0; i < n_links(t); i++)
        if (t->links[i].phase != LINK_OVER)
            return;
    t->is_done = true;
    world_tell(t->world, "rank %u is through", t->rank);
}

static void lose(struct trainer *t, struct link *l)
{
    if (l->phase == LINK_LEAVING) {
        over(t, l);
        return;
    }
    if (l->phase == LINK_OVER)
        return;
    if (l->connection)
        net_hang_up(&t->world->net, l->connection);
    l->connection = NULL;
    l->phase = LINK_AWAY;
    l->beat_us = 0;
    dial_later(t, l);
}

/* Nothing that is under way counts any more: as another incarnation to all shards. */
static void join_anew(struct trainer *t, uint64_t incarnation)
{
    t->incarnation = incarnation;
    t->epoch++;
    t->is_pulling = t->is_computing = false;
    for (uint32_t i = 0; i < n_links(t); i++) {
        struct link *l = &t->links[i];

        if (l->connection)
            net_hang_up(&t->world->net, l->connection);
        *l = (struct link){ .dial = l->dial };
        dial_later(t, l);
    }
}

static void fenced(struct trainer *t, uint64_t fenced_below)
{
    uint64_t next = t->incarnation + 1;

    world_tell(t->world, "rank %u is fenced", t->rank);
    join_anew(t, next > fenced_below ? next : fenced_below);
}

/* --- what shards answer --- */

static void acknowledge(struct link *l)
{
    l->backlog[0]->is_acked = true;
    l->last_acked = l->backlog[0]->seq;
    l->n_backlog--;
    memmove(&l->backlog[0], &l->backlog[1], l->n_backlog * sizeof l->backlog[0]);
}

static void ask(struct trainer *t, struct link *l, const struct message *m)
{
    net_ask(&t->world->net, l->connection, m);
}

static void ask_push(struct trainer *t, struct link *l, struct sent_push *push)
{
    ask(t, l, &(struct message){ .type = MESSAGE_PUSH, .push = push });
}

static void begin_naming(struct trainer *t, struct link *l)
{
    l->phase = LINK_NAMING;
    l->n_named = 0;
    ask(t, l, &(struct message){ .type = MESSAGE_TABLE });
}

static void joined(struct trainer *t, struct link *l, const struct message *m)
{
    if (m->last < l->last_acked || m->last > l->last_seq) {
        if (t->world->plan.durability == LOG_FSYNC)
            world_fail(t->world,
                       "shard %u has push %llu of rank %u, acknowledged was %llu, made %llu",
                       shard_of(t, l), (unsigned long long)m->last, t->rank,
                       (unsigned long long)l->last_acked, (unsigned long long)l->last_seq);
        fenced(t, 0);
        return;
    }
    l->joined_clock = m->clock;
    while (l->n_backlog && l->backlog[0]->seq <= m->last)
        acknowledge(l);
    if (l->has_joined && m->clock > t->clock)
        fenced(t, 0);
    else
        begin_naming(t, l);
}

static bool all_joined(const struct trainer *t)
{
    for (uint32_t i = 0; i < n_links(t); i++)
        if (!t->links[i].has_joined)
            return false;
    return true;
}

static void on_ready(struct trainer *t, struct link *l)
{
    bool were_joined = all_joined(t);

    l->phase = LINK_READY;
    l->has_joined = true;
    if (!were_joined && l->joined_clock > t->clock)
        t->clock = l->joined_clock;
    for (uint32_t i = 0; i < l->n_backlog; i++)
        ask_push(t, l, l->backlog[i]);
    if (t->is_pulling && !l->is_answered)
        ask(t, l, &t->pull);
    if (!were_joined && all_joined(t))
        t->asked = t->pulled = t->clock;
    go_on(t);
}

static bool is_passing(int status)
{
    return status == PS_ENOJOIN || status == PS_ESEQ || status == -ENOMEM ||
           status == -EAGAIN || status == -EBUSY;
}

static void pushed(struct trainer *t, struct link *l, const struct message *m)
{
    if (!l->n_backlog || l->backlog[0] != m->push)
        world_fail(t->world, "shard %u answers push %llu of rank %u, which is not the next",
                   shard_of(t, l), (unsigned long long)m->push->seq, t->rank);
    acknowledge(l);
    go_on(t);
}

static void pulled(struct trainer *t, struct link *l, const struct message *m)
{
    if (!t->is_pulling || m->id != t->pull.id)
        return;
    l->is_answered = true;
    for (uint32_t i = 0; i < n_links(t); i++)
        if (!t->links[i].is_answered)
            return;
    t->is_pulling = false;
    t->pulled++;
    go_on(t);
}

static void take(struct trainer *t, struct link *l, const struct message *m)
{
    switch (m->type) {
    case MESSAGE_JOIN:
        joined(t, l, m);
        break;
    case MESSAGE_TABLE:
        /* One at a time, so that numbers are the same everywhere. */
        if (++l->n_named == t->world->plan.n_tables)
            on_ready(t, l);
        else
            ask(t, l, &(struct message){ .type = MESSAGE_TABLE, .table = l->n_named });
        break;
    case MESSAGE_PUSH:
        pushed(t, l, m);
        break;
    case MESSAGE_PULL:
        pulled(t, l, m);
        break;
    case MESSAGE_BEAT:
        l->beat_us = 0;
        break;
    case MESSAGE_LEAVE:
        over(t, l);
        break;
    }
}

/* --- what comes while it stands still --- */

struct late {
    struct late *next; /* owned */
    struct net_connection *from;
    struct message message;
};

static void answer(struct trainer *t, struct net_connection *c, const struct message *m);
static void thaw_later(struct trainer *t);

/* In the order in which it came, however many stops there were. */
static void on_thaw(void *owner, uint64_t number, void *data)
{
    struct trainer *t = owner;
    struct late *late;

    (void)number;
    (void)data;
    if (is_frozen(t)) {
        thaw_later(t);
        return;
    }
    while ((late = t->late)) {
        t->late = late->next;
        answer(t, late->from, &late->message);
        free(late);
    }
}

static void thaw_later(struct trainer *t)
{
    events_in(&t->world->events, t->frozen_until_us - t->world->events.now_us, on_thaw, t, 0,
              NULL);
}

static void keep(struct trainer *t, struct net_connection *c, const struct message *m)
{
    struct late *late = malloc(sizeof *late), **at = &t->late;

    assert(late);
    *late = (struct late){ NULL, c, *m };
    if (!t->late)
        thaw_later(t);
    while (*at)
        at = &(*at)->next;
    *at = late;
}

void trainer_reply(struct trainer *t, struct net_connection *c, const struct message *m)
{
    if (is_frozen(t) || t->late)
        keep(t, c, m);
    else
        answer(t, c, m);
}

void trainer_deinit(struct trainer *t)
{
    struct late *next;

    for (; t->late; t->late = next) {
        next = t->late->next;
        free(t->late);
    }
}

static void answer(struct trainer *t, struct net_connection *c, const struct message *m)
{
    struct link *l = &t->links[c->shard];

    if (l->connection != c)
        return;
    if (m->status == PS_EFENCED && l->phase == LINK_LEAVING)
        over(t, l);
    else if (m->status == PS_EFENCED)
        fenced(t, m->fenced_below);
    else if (is_passing(m->status))
        lose(t, l);
    else if (m->status)
        world_fail(t->world, "shard %u refuses message %d of rank %u: %s", c->shard, m->type,
                   t->rank, status_text(m->status));
    else
        take(t, l, m);
}

void trainer_closed(struct trainer *t, struct net_connection *c)
{
    if (t->links[c->shard].connection == c)
        lose(t, &t->links[c->shard]);
}

/* --- steps --- */

static void push_to(struct trainer *t, struct link *l)
{
    struct world *w = t->world;
    struct sent_push like = { .rank = t->rank,
                              .shard = shard_of(t, l),
                              .incarnation = t->incarnation,
                              .clock = t->clock };
    uint32_t n_parts = dice_once_in(&w->dice, 4) ? 2 : 1;

    for (uint32_t i = 0; i < n_parts; i++) {
        struct sent_push *push;

        if (l->n_backlog == WORKER_BACKLOG_MAX)
            world_fail(w, "rank %u has %u pushes that shard %u does not answer", t->rank,
                       l->n_backlog, like.shard);
        like.seq = ++l->last_seq;
        push = ledger_make(&w->ledger, &w->plan, &like, i, n_parts);
        l->backlog[l->n_backlog++] = push;
        if (l->phase == LINK_READY)
            ask_push(t, l, push);
    }
}

static void on_computed(void *owner, uint64_t epoch, void *data)
{
    struct trainer *t = owner;

    (void)data;
    if (epoch != t->epoch)
        return;
    if (is_frozen(t)) {
        events_in(&t->world->events, t->frozen_until_us - t->world->events.now_us, on_computed,
                  t, epoch, NULL);
        return;
    }
    t->is_computing = false;
    world_tell(t->world, "rank %u pushes clock %llu", t->rank, (unsigned long long)t->clock);
    for (uint32_t i = 0; i < n_links(t); i++)
        push_to(t, &t->links[i]);
    t->clock++;
    go_on(t);
}

static void ask_pull(struct trainer *t)
{
    if (!plan_asks(&t->world->plan, t->rank, t->asked)) {
        t->pulled = ++t->asked;
        return;
    }
    t->is_pulling = true;
    t->pull = (struct message){ .type = MESSAGE_PULL,
                                .clock = t->asked,
                                .unfinished = t->asked - t->clock,
                                .id = (uint64_t)t->rank << 32 | ++t->n_pulls };
    t->asked++;
    for (uint32_t i = 0; i < n_links(t); i++) {
        t->links[i].is_answered = false;
        if (t->links[i].phase == LINK_READY)
            ask(t, &t->links[i], &t->pull);
    }
}

static void say_goodbye(struct trainer *t)
{
    for (uint32_t i = 0; i < n_links(t); i++)
        if (t->links[i].n_backlog || t->links[i].phase != LINK_READY)
            return;
    for (uint32_t i = 0; i < n_links(t); i++) {
        t->links[i].phase = LINK_LEAVING;
        ask(t, &t->links[i], &(struct message){ .type = MESSAGE_LEAVE });
    }
}

static void go_on(struct trainer *t)
{
    const struct plan *p = &t->world->plan;

    if (!all_joined(t))
        return;
    if (t->clock >= p->n_steps) {
        say_goodbye(t);
        return;
    }
    if (!t->is_pulling && t->asked <= t->clock + p->ahead && t->asked < p->n_steps)
        ask_pull(t);
    if (t->pulled > t->clock && !t->is_computing) {
        t->is_computing = true;
        events_in(&t->world->events,
                  dice_from(&t->world->dice, p->compute_us / 4, p->compute_us), on_computed, t,
                  t->epoch, NULL);
    }
}

/* --- heartbeats --- */

static void on_beat(void *owner, uint64_t number, void *data)
{
    struct trainer *t = owner;
    uint64_t now_us = t->world->events.now_us,
             lease_us = 1000 * (uint64_t)t->world->plan.lease_ms;

    (void)number;
    (void)data;
    for (uint32_t i = 0; !t->is_done && !is_frozen(t) && i < n_links(t); i++) {
        struct link *l = &t->links[i];

        if (l->beat_us && now_us - l->beat_us > lease_us) {
            lose(t, l);
        } else if (l->phase == LINK_READY && !l->beat_us) {
            l->beat_us = now_us;
            ask(t, l, &(struct message){ .type = MESSAGE_BEAT });
        }
    }
    if (!t->is_done)
        events_in(&t->world->events, lease_us / 3, on_beat, t, 0, NULL);
}

/* --- life --- */

static void on_start(void *owner, uint64_t number, void *data)
{
    struct trainer *t = owner;

    (void)number;
    (void)data;
    t->n_processes++;
    t->clock = 0;
    join_anew(t, t->incarnation + 1);
}

void trainer_init(struct trainer *t, struct world *world, uint32_t rank)
{
    *t = (struct trainer){ .world = world, .rank = rank };
}

void trainer_start(struct trainer *t)
{
    on_start(t, 0, NULL);
    events_in(&t->world->events, 333 * (uint64_t)t->world->plan.lease_ms, on_beat, t, 0, NULL);
}

void trainer_crash(struct trainer *t)
{
    if (t->is_done)
        return;
    world_tell(t->world, "rank %u dies", t->rank);
    t->epoch++;
    t->is_pulling = t->is_computing = false;
    for (uint32_t i = 0; i < n_links(t); i++) {
        if (t->links[i].connection)
            net_hang_up(&t->world->net, t->links[i].connection);
        t->links[i] = (struct link){ .dial = t->links[i].dial + 1 };
    }
    events_in(&t->world->events,
              dice_from(&t->world->dice, 1000, 1500 * (uint64_t)t->world->plan.lease_ms),
              on_start, t, 0, NULL);
}

void trainer_freeze(struct trainer *t, uint64_t for_us)
{
    world_tell(t->world, "rank %u stands still for %llu us", t->rank,
               (unsigned long long)for_us);
    /* The longer of two counts. */
    if (t->world->events.now_us + for_us > t->frozen_until_us)
        t->frozen_until_us = t->world->events.now_us + for_us;
}
