#include "tests/sim/schedule.h"

#include <assert.h>
#include <stdlib.h>

#include "tests/sim/node.h"
#include "tests/sim/worker.h"

#define PATIENCE_US UINT64_C(30000000)

struct schedule {
    struct world world;
    const struct schedule_config *config; /* borrowed */
    struct node nodes[PLAN_N_SHARDS_MAX];
    struct trainer trainers[PLAN_N_WORKERS_MAX];
    struct dice dice; /* of faults */
};

/* --- the network's ends --- */

static struct node *node_of(struct schedule *s, uint32_t shard)
{
    return &s->nodes[shard / s->world.plan.shards_per_node];
}

static struct server *server_of(struct schedule *s, uint32_t shard)
{
    return &node_of(s, shard)->servers[shard % s->world.plan.shards_per_node];
}

static uint64_t life(void *owner, uint32_t shard)
{
    return node_of(owner, shard)->life;
}

static void on_request(void *owner, struct net_connection *c, const struct message *m)
{
    server_request(server_of(owner, c->shard), c, m);
}

static void on_reply(void *owner, struct net_connection *c, const struct message *m)
{
    struct schedule *s = owner;

    trainer_reply(&s->trainers[c->worker], c, m);
}

static void on_shard_closed(void *owner, struct net_connection *c)
{
    server_closed(server_of(owner, c->shard), c);
}

static void on_worker_closed(void *owner, struct net_connection *c)
{
    struct schedule *s = owner;

    trainer_closed(&s->trainers[c->worker], c);
}

static const struct net_events net_events = { life, on_request, on_reply, on_shard_closed,
                                              on_worker_closed };

/* --- trouble --- */

static struct node *any_node(struct schedule *s)
{
    return &s->nodes[dice_roll(&s->dice, s->world.plan.n_nodes)];
}

static struct trainer *any_trainer(struct schedule *s)
{
    return &s->trainers[dice_roll(&s->dice, s->world.plan.n_workers)];
}

static void on_cut(void *owner, uint64_t number, void *data)
{
    struct schedule *s = owner;
    const struct trainer *t = any_trainer(s);
    const struct link *l = &t->links[dice_roll(&s->dice, s->world.plan.n_shards)];

    (void)number;
    (void)data;
    if (l->connection)
        net_cut(&s->world.net, l->connection);
}

/* Between two events, or in the middle of some file operation soon. */
static void on_kill(void *owner, uint64_t is_power_cut, void *data)
{
    struct schedule *s = owner;
    struct node *n = any_node(s);

    (void)data;
    if (s->config->die_at == SCHEDULE_NEVER && dice_once_in(&s->dice, 2))
        n->disk.die_at = n->disk.n_ops + dice_roll(&s->dice, 40);
    else
        node_kill(n, is_power_cut);
}

static void on_disk_well(void *owner, uint64_t node, void *data)
{
    struct schedule *s = owner;
    struct disk *d = &s->nodes[node].disk;

    (void)data;
    d->full = d->ill = d->sync_fails = false;
}

static void on_disk_fault(void *owner, uint64_t number, void *data)
{
    struct schedule *s = owner;
    struct node *n = any_node(s);

    (void)number;
    (void)data;
    switch (dice_roll(&s->dice, 3)) {
    case 0:
        n->disk.full = true;
        break;
    case 1:
        n->disk.ill = true;
        break;
    default:
        n->disk.sync_fails = true;
        break;
    }
    world_tell(&s->world, "node %u: the disk %s", n->index,
               n->disk.full  ? "is full"
               : n->disk.ill ? "fails"
                             : "cannot sync");
    events_in(&s->world.events, dice_from(&s->dice, 100, 40000), on_disk_well, s, n->index,
              NULL);
}

static void on_worker_crash(void *owner, uint64_t number, void *data)
{
    (void)number;
    (void)data;
    trainer_crash(any_trainer(owner));
}

static void on_freeze(void *owner, uint64_t number, void *data)
{
    struct schedule *s = owner;

    (void)number;
    (void)data;
    trainer_freeze(any_trainer(s),
                   dice_from(&s->dice, 1000, 2500 * (uint64_t)s->world.plan.lease_ms));
}

static void on_look(void *owner, uint64_t number, void *data)
{
    struct schedule *s = owner;

    (void)number;
    (void)data;
    node_check_crash(any_node(s), dice_once_in(&s->dice, 2));
}

static void plan_trouble(struct schedule *s, uint32_t n, event_fn run, uint64_t number)
{
    for (uint32_t i = 0; i < n; i++)
        events_in(&s->world.events, dice_roll(&s->dice, s->world.plan.span_us), run, s, number,
                  NULL);
}

static void plan_all_trouble(struct schedule *s)
{
    const struct plan *p = &s->world.plan;

    plan_trouble(s, p->n_cuts, on_cut, 0);
    plan_trouble(s, p->n_kills, on_kill, false);
    plan_trouble(s, p->n_power_cuts, on_kill, true);
    plan_trouble(s, p->n_disk_faults, on_disk_fault, 0);
    plan_trouble(s, p->n_worker_crashes, on_worker_crash, 0);
    plan_trouble(s, p->n_freezes, on_freeze, 0);
    plan_trouble(s, 2, on_look, 0);
}

/* --- running --- */

/* Whose disk has died in an operation has died itself. */
static void bury(struct schedule *s)
{
    for (uint32_t i = 0; i < s->world.plan.n_nodes; i++) {
        struct node *n = &s->nodes[i];

        if (n->disk.dead)
            node_kill(n, s->config->die_at == SCHEDULE_NEVER ? dice_once_in(&s->dice, 2)
                                                             : s->config->die_is_cut);
    }
}

static bool is_over(const struct schedule *s)
{
    for (uint32_t i = 0; i < s->world.plan.n_workers; i++)
        if (!s->trainers[i].is_done)
            return false;
    for (uint32_t i = 0; i < s->world.plan.n_nodes; i++)
        if (!node_is_safe(&s->nodes[i]))
            return false;
    return true;
}

/* Who is not through, and what is not safe. */
static _Noreturn void fail_late(const struct schedule *s)
{
    char text[200] = "";
    int n = 0;

    for (uint32_t i = 0; i < s->world.plan.n_workers && n < 150; i++)
        if (!s->trainers[i].is_done)
            n += snprintf(text + n, sizeof text - (size_t)n, "; rank %u is at clock %llu", i,
                          (unsigned long long)s->trainers[i].clock);
    for (uint32_t i = 0; i < s->world.plan.n_nodes && n < 150; i++)
        if (!node_is_safe(&s->nodes[i]))
            n += snprintf(text + n, sizeof text - (size_t)n, "; node %u is %s", i,
                          s->nodes[i].life ? "not safe" : "down");
    world_fail(&s->world, "not all is done, and nothing has gone wrong for long%s", text);
}

static void run(struct schedule *s)
{
    const struct plan *p = &s->world.plan;
    uint64_t limit_us = p->span_us + PATIENCE_US + 4000 * (uint64_t)p->lease_ms;

    while (!is_over(s)) {
        if (!events_run_next(&s->world.events))
            world_fail(&s->world, "nothing happens any more, and not all is done");
        if (s->world.events.now_us > limit_us)
            fail_late(s);
        bury(s);
        for (uint32_t i = 0; i < p->n_nodes; i++)
            node_check_step(&s->nodes[i]);
    }
}

static void check(struct schedule *s)
{
    for (uint32_t i = 0; i < s->world.plan.n_nodes; i++) {
        node_check_crash(&s->nodes[i], false);
        node_check_crash(&s->nodes[i], true);
        node_check_end(&s->nodes[i]);
    }
}

static void count(const struct schedule *s, struct schedule_facts *ret)
{
    const struct world *w = &s->world;

    *ret = (struct schedule_facts){ .n_events = w->events.n_run,
                                    .simulated_us = w->events.now_us,
                                    .n_pushes = w->ledger.n,
                                    .n_nodes = w->plan.n_nodes };
    for (uint32_t i = 0; i < w->plan.n_nodes; i++) {
        ret->n_recovered += s->nodes[i].n_recovered - 1;
        ret->n_checkpoints += s->nodes[i].keeper.n_done;
        ret->n_met += s->nodes[i].n_met;
        ret->n_ops[i] = s->nodes[i].disk.n_ops;
    }
    for (uint32_t i = 0; i < w->plan.n_shards; i++)
        ret->n_records += w->books[i].history.n;
}

static void begin(struct schedule *s, const struct schedule_config *config)
{
    struct world *w = &s->world;

    s->config = config;
    w->is_told = config->is_told;
    plan_make(&w->plan, config->seed);
    if (config->die_at != SCHEDULE_NEVER)
        snprintf(w->what, sizeof w->what, " --node %u --die-at %llu%s", config->die_node,
                 (unsigned long long)config->die_at, config->die_is_cut ? " --cut" : "");
    w->dice = dice_of(config->seed, 2);
    s->dice = dice_of(config->seed, 3);
    net_init(&w->net, &w->events, &net_events, s, dice_of(config->seed, 4), w->plan.network_us);
    for (uint32_t i = 0; i < w->plan.n_shards; i++)
        model_init(&w->books[i].model, &w->plan);
    for (uint32_t i = 0; i < w->plan.n_nodes; i++) {
        node_init(&s->nodes[i], w, i);
        node_start(&s->nodes[i]);
    }
    if (config->die_at != SCHEDULE_NEVER)
        s->nodes[config->die_node].disk.die_at = config->die_at;
    for (uint32_t i = 0; i < w->plan.n_workers; i++) {
        trainer_init(&s->trainers[i], w, i);
        trainer_start(&s->trainers[i]);
    }
    plan_all_trouble(s);
    if (w->is_told)
        plan_print(&w->plan, stdout);
}

static void end(struct schedule *s)
{
    struct world *w = &s->world;

    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        node_deinit(&s->nodes[i]);
    for (uint32_t i = 0; i < w->plan.n_workers; i++)
        trainer_deinit(&s->trainers[i]);
    for (uint32_t i = 0; i < w->plan.n_shards; i++) {
        history_deinit(&w->books[i].history);
        model_deinit(&w->books[i].model);
    }
    events_deinit(&w->events);
    net_deinit(&w->net);
    ledger_deinit(&w->ledger);
}

void schedule_run(const struct schedule_config *config, struct schedule_facts *ret)
{
    struct schedule *s = calloc(1, sizeof *s);

    assert(s);
    begin(s, config);
    run(s);
    check(s);
    count(s, ret);
    end(s);
    free(s);
}
