#include "tests/sim/schedule.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/client.h"
#include "tests/sim/coord.h"
#include "tests/sim/node.h"
#include "tests/sim/os.h"
#include "tests/sim/pair.h"
#include "tests/sim/paths.h"
#include "tests/sim/taps.h"
#include "tests/sim/uv_state.h"

#define PATIENCE_US UINT64_C(60000000)

struct schedule {
    struct world world;
    const struct schedule_config *config; /* borrowed */
    struct node nodes[PLAN_N_SHARDS_MAX], next_nodes[PLAN_N_SHARDS_MAX],
        seconds[PLAN_N_SHARDS_MAX];
    struct client clients[PLAN_N_WORKERS_MAX];
    struct dice dice; /* of faults */
    struct dice path_dice, pair_dice,
        loss_dice; /* of paths, pairs, lost keys: a seed's other faults are the same without */
};

/* --- faults --- */

static uint32_t n_members(const struct world *w)
{
    uint32_t n = w->plan.n_nodes;

    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        n += w->nodes[i].other != NULL;
    return n;
}

static struct node *any_node(struct schedule *s)
{
    return node_nth(&s->world, (uint32_t)dice_roll(&s->dice, n_members(&s->world)));
}

static struct client *any_client(struct schedule *s)
{
    return &s->clients[dice_roll(&s->dice, s->world.plan.n_workers)];
}

/* Half of the resets wait until something is on its way: pushes that are not acknowledged are sent again then. */
static void reset_one(void *owner, uint64_t n_tries, void *data)
{
    struct schedule *s = owner;
    struct client *c = any_client(s);

    (void)data;
    if (c->process && net_reset_one(c->process, n_tries > 0, &s->dice))
        world_trace(&s->world, "a connection of rank %u is reset", c->rank);
    else if (n_tries > 1)
        events_in(&machine.events, 300, reset_one, s, n_tries - 1, NULL);
}

static void on_reset(struct schedule *s)
{
    reset_one(s, dice_once_in(&s->dice, 2) ? 0 : 200, NULL);
}

/* Between two instructions, or in the middle of some file operation soon. */
static void kill_one(struct schedule *s, bool is_power_cut)
{
    struct node *n = any_node(s);

    if (s->config->die_at == SCHEDULE_NEVER && n->process && dice_once_in(&s->dice, 2))
        n->disk.die_at = n->disk.n_ops + dice_roll(&s->dice, 40);
    else
        node_kill(n, is_power_cut);
}

static void on_kill(struct schedule *s)
{
    kill_one(s, false);
}

static void on_power_cut(struct schedule *s)
{
    kill_one(s, true);
}

static void on_stop(struct schedule *s)
{
    node_stop(any_node(s));
}

static void on_disk_well(void *owner, uint64_t node, void *data)
{
    struct schedule *s = owner;
    struct disk *d = &node_nth(&s->world, (uint32_t)node)->disk;

    (void)data;
    d->full = d->failing = d->sync_fails = false;
}

static void on_disk_fault(struct schedule *s)
{
    uint32_t i = (uint32_t)dice_roll(&s->dice, n_members(&s->world));
    struct node *n = node_nth(&s->world, i);

    switch (dice_roll(&s->dice, 3)) {
    case 0:
        n->disk.full = true;
        break;
    case 1:
        n->disk.failing = true;
        break;
    default:
        n->disk.sync_fails = true;
        break;
    }
    world_trace(&s->world, "node %u: the disk %s", n->index,
                n->disk.full      ? "is full"
                : n->disk.failing ? "fails"
                                  : "cannot sync");
    events_in(&machine.events, dice_from(&s->dice, 100, 40000), on_disk_well, s, i, NULL);
}

static void on_client_crash(struct schedule *s)
{
    client_crash(any_client(s));
}

static void on_freeze(struct schedule *s)
{
    client_freeze(any_client(s),
                  dice_from(&s->dice, 1000, 2500 * (uint64_t)s->world.plan.lease_ms));
}

static void on_replace(struct schedule *s)
{
    client_replace(any_client(s), dice_from(&s->dice, 600 * (uint64_t)s->world.plan.lease_ms,
                                            2500 * (uint64_t)s->world.plan.lease_ms));
}

static void on_path_reset(void *owner, uint64_t node, void *data)
{
    (void)data;
    net_reset_path(owner, (uint32_t)node, &machine.dice);
}

/* What is under way arrives behind it, or is lost. */
static void hold_path(struct schedule *s, const struct client *c, uint32_t node,
                      unsigned directions, uint64_t for_us)
{
    bool is_reset = dice_once_in(&s->path_dice, 2);

    if (!c->process)
        return;
    world_trace(&s->world, "rank %u and node %u: nothing passes%s for %llu us%s", c->rank, node,
                directions == PATH_TO_NODE      ? " to the node"
                : directions == PATH_TO_DIALLER ? " to the worker"
                                                : "",
                (unsigned long long)for_us, is_reset ? ", and is lost" : "");
    paths_hold(c->process, node, directions, machine_now_us() + for_us);
    if (is_reset)
        events_in(&machine.events, for_us, on_path_reset, c->process, node, NULL);
}

static void on_path(struct schedule *s)
{
    struct dice *d = &s->path_dice;
    uint64_t lease_us = 1000 * (uint64_t)s->world.plan.lease_ms,
             for_us = dice_from(d, lease_us, (dice_once_in(d, 3) ? 7 : 3) * lease_us);
    const struct client *c = &s->clients[dice_roll(d, s->world.plan.n_workers)];
    uint32_t node = (uint32_t)dice_roll(d, s->world.plan.n_nodes);

    hold_path(s, c, node, (unsigned)dice_from(d, 1, PATH_TO_NODE | PATH_TO_DIALLER), for_us);
}

/* All workers, which come back one after another. */
static void on_isolation(struct schedule *s)
{
    struct dice *d = &s->path_dice;
    uint64_t lease_us = 1000 * (uint64_t)s->world.plan.lease_ms;
    uint32_t node = (uint32_t)dice_roll(d, s->world.plan.n_nodes);

    for (uint32_t i = 0; i < s->world.plan.n_workers; i++)
        hold_path(s, &s->clients[i], node, PATH_TO_NODE | PATH_TO_DIALLER,
                  dice_from(d, lease_us, 3 * lease_us));
}

static void on_checkpoint(struct schedule *s)
{
    node_ask_checkpoint(any_node(s));
}

static void on_crash_check(struct schedule *s)
{
    node_check_crash(any_node(s), dice_once_in(&s->dice, 2));
}

/* --- faults of pairs --- */

/* One of both. */
static struct node *any_member(struct schedule *s)
{
    struct node *n;

    do
        n = node_nth(&s->world, (uint32_t)dice_roll(&s->pair_dice, n_members(&s->world)));
    while (!n->other);
    return n;
}

/* What is to be done to a pair once its standby is in sync: before, little relies on it. n: its primary. */
struct pair_fault {
    struct schedule *schedule;
    void (*run)(struct schedule *s, struct node *n);
    struct node *primary;
};

static void when_in_sync(void *owner, uint64_t n_tries, void *data)
{
    struct pair_fault *f = owner;
    struct node *n = any_member(f->schedule);

    (void)data;
    n = node_leads(n) ? n : n->other;
    if (n->process && !n->is_held && n->is_in_sync) {
        f->run(f->schedule, n);
        free(f);
    } else if (n_tries < 60) {
        events_in(&machine.events, 50000, when_in_sync, f, n_tries + 1, NULL);
    } else {
        free(f);
    }
}

static void in_sync(struct schedule *s, void (*run)(struct schedule *s, struct node *n))
{
    struct pair_fault *f = malloc(sizeof *f);

    assert(f);
    *f = (struct pair_fault){ s, run, NULL };
    when_in_sync(f, 0, NULL);
}

/* As SIGSTOP does it, or a machine that is moved. */
static void pause_one(struct schedule *s, struct node *n)
{
    uint64_t for_us = dice_from(&s->pair_dice, 50000, 2500000);

    if (!n->process)
        return;
    world_trace(&s->world, "node %u%s stands still for %llu us", n->index, n->member ? "'" : "",
                (unsigned long long)for_us);
    process_freeze(n->process, for_us);
}

static void on_pause(struct schedule *s)
{
    if (dice_once_in(&s->pair_dice, 2))
        in_sync(s, pause_one);
    else
        pause_one(s, any_member(s));
}

static uint32_t number_of(const struct node *n)
{
    return n->index + 10 * n->member;
}

/* For how long nothing passes to the member that is dialled, and to the one that dials it; 0: all does. */
struct hold {
    uint64_t to_node_us, to_dialler_us;
};

static struct hold hold_of(unsigned directions, uint64_t for_us)
{
    return (struct hold){ directions & PATH_TO_NODE ? for_us : 0,
                          directions & PATH_TO_DIALLER ? for_us : 0 };
}

/* Whoever of both dials the other one. */
static void hold_link(struct schedule *s, const struct node *n, const struct hold *h)
{
    const uint64_t now_us = machine_now_us(),
                   for_us = h->to_node_us > h->to_dialler_us ? h->to_node_us : h->to_dialler_us;
    bool is_reset = dice_once_in(&s->pair_dice, 2);

    world_trace(&s->world,
                "members of node %u: nothing passes for %llu us one way, %llu us the other "
                "way%s",
                n->index, (unsigned long long)h->to_node_us,
                (unsigned long long)h->to_dialler_us, is_reset ? ", and is lost" : "");
    for (int i = 0; i < 2; i++, n = n->other) {
        paths_hold(n, number_of(n->other), PATH_TO_NODE, now_us + h->to_node_us);
        paths_hold(n, number_of(n->other), PATH_TO_DIALLER, now_us + h->to_dialler_us);
        if (is_reset)
            events_in(&machine.events, for_us, on_path_reset, (void *)(uintptr_t)n,
                      number_of(n->other), NULL);
    }
}

static void hold_one(struct schedule *s, struct node *n)
{
    struct dice *d = &s->pair_dice;
    unsigned directions = (unsigned)dice_from(d, 1, PATH_TO_NODE | PATH_TO_DIALLER);
    const struct hold h = hold_of(directions, dice_from(d, 50000, 3000000));

    hold_link(s, n, &h);
}

static void on_link(struct schedule *s)
{
    if (dice_once_in(&s->pair_dice, 2))
        in_sync(s, hold_one);
    else
        hold_one(s, any_member(s));
}

/* Off from the other member and from the coordination service, though not from workers. */
static void sever(struct schedule *s, struct node *n)
{
    struct dice *d = &s->pair_dice;
    const uint64_t for_us = dice_from(d, 500000, 3000000);
    const unsigned directions = (unsigned)dice_from(d, 1, PATH_TO_NODE | PATH_TO_DIALLER);
    struct hold h = hold_of(directions, dice_from(d, for_us / 4, for_us));

    world_trace(&s->world, "node %u%s is severed", n->index, n->member ? "'" : "");
    /* What was held may come before it can hear of the service, and what the standby asks before it gets an answer. */
    if (h.to_node_us && h.to_dialler_us)
        h.to_node_us = dice_from(d, 100000, h.to_node_us);
    hold_link(s, n, &h);
    coord_hold(n->process, for_us);
}

static void on_death(void *owner, uint64_t is_power_cut, void *data)
{
    (void)data;
    node_kill(owner, is_power_cut);
}

static void both_die(struct schedule *s, struct node *n)
{
    for (int i = 0; i < 2; i++, n = n->other)
        events_in(&machine.events, dice_roll(&s->pair_dice, 5000), on_death, n,
                  dice_once_in(&s->pair_dice, 2), NULL);
}

static void on_promise(void *pair_fault, uint64_t number, void *data)
{
    struct pair_fault *f = pair_fault;

    (void)number;
    (void)data;
    f->run(f->schedule, f->primary);
    free(f);
}

/* When it next promises something: that is in memory, and perhaps not yet on a disk. */
static void at_promise(struct schedule *s, struct node *n,
                       void (*run)(struct schedule *s, struct node *n))
{
    struct pair_fault *f = malloc(sizeof *f);

    assert(f);
    *f = (struct pair_fault){ s, run, n };
    if (s->world.is_calm || !pair_await_promise(n, on_promise, f))
        free(f);
}

static void both_die_at_promise(struct schedule *s, struct node *n)
{
    at_promise(s, n, both_die);
}

/* Once the job is under way. */
static void sever_at_promise(struct schedule *s, struct node *n)
{
    at_promise(s, n, sever);
}

static void on_severed(struct schedule *s)
{
    in_sync(s, sever_at_promise);
}

static void on_double_death(struct schedule *s)
{
    if (dice_once_in(&s->pair_dice, 2))
        in_sync(s, both_die_at_promise);
    else
        both_die(s, any_member(s));
}

static void on_outage(struct schedule *s)
{
    const struct node *n = any_member(s);

    coord_go_away(n->process, &s->pair_dice);
}

/* Something else happens to one of both about then. */
static void lose_keys(struct schedule *s, struct node *n)
{
    struct dice *d = &s->loss_dice;

    n = dice_once_in(d, 3) ? n->other : n;
    switch (dice_roll(d, 6)) {
    case 0:
        pause_one(s, n);
        break;
    case 1:
    case 2:
        sever(s, n);
        break;
    case 3:
        events_in(&machine.events, dice_roll(d, 2000000), on_death, n, dice_once_in(d, 2),
                  NULL);
        break;
    case 4:
        hold_one(s, n);
        break;
    default:
        break;
    }
    coord_lose_keys(d, 1500000);
}

static void on_loss(struct schedule *s)
{
    if (dice_once_in(&s->loss_dice, 4))
        lose_keys(s, any_member(s));
    else
        in_sync(s, lose_keys);
}

/* The one that is promoted has died, too, and what it had in memory is gone. */
static void restart_and_promote(struct schedule *s, struct node *n)
{
    node_kill(n->other, dice_once_in(&s->pair_dice, 2));
    pair_promote(n, false, &s->pair_dice);
}

static void promote_other(struct schedule *s, struct node *n)
{
    if (dice_once_in(&s->pair_dice, 3))
        at_promise(s, n, restart_and_promote);
    else
        pair_promote(n, false, &s->pair_dice);
}

static void on_promotion(struct schedule *s)
{
    in_sync(s, promote_other);
}

static void switch_over(void *owner)
{
    (void)node_command(owner, "switch", "", 60000);
}

static void on_switched(void *owner)
{
    (void)owner;
}

static void start_switch(struct schedule *s, struct node *n)
{
    (void)s;
    process_start("operator", NULL, switch_over, on_switched, n)->node = UINT32_MAX;
}

static void on_switch(struct schedule *s)
{
    in_sync(s, start_switch);
}

static void on_lossy_promotion(struct schedule *s)
{
    struct node *n = any_member(s);

    n = node_leads(n) ? n : n->other;
    if (n->process && !n->is_held && n->other->is_open)
        pair_promote(n, true, &s->pair_dice);
}

/* What is to go wrong, in one of the two layouts. */
struct fault {
    void (*run)(struct schedule *s);
    bool has_moved;
};

static void on_fault(void *owner, uint64_t number, void *data)
{
    struct schedule *s = owner;
    const struct fault *t = data;

    (void)number;
    if (t->has_moved == s->world.plan.has_moved)
        t->run(s);
}

static void plan_faults(struct schedule *s, uint32_t n, void (*run)(struct schedule *s))
{
    for (uint32_t i = 0; i < n; i++) {
        struct fault *t = malloc(sizeof *t);

        assert(t);
        *t = (struct fault){ run, s->world.plan.has_moved };
        events_in(&machine.events, dice_roll(&s->dice, s->world.plan.span_us), on_fault, s, 0,
                  t);
    }
}

static void on_calm(void *owner, uint64_t number, void *data)
{
    struct schedule *s = owner;

    (void)number;
    (void)data;
    s->world.is_calm = machine.is_calm = true;
    if (s->world.lines)
        coord_set_bad(false);
}

static void plan_all_faults(struct schedule *s)
{
    const struct plan *p = &s->world.plan;

    plan_faults(s, p->n_resets, on_reset);
    plan_faults(s, p->n_kills, on_kill);
    plan_faults(s, p->n_power_cuts, on_power_cut);
    plan_faults(s, p->n_stops, on_stop);
    plan_faults(s, p->n_disk_faults, on_disk_fault);
    plan_faults(s, p->n_worker_crashes, on_client_crash);
    plan_faults(s, p->n_freezes, on_freeze);
    plan_faults(s, p->n_replaced, on_replace);
    plan_faults(s, p->n_checkpoints, on_checkpoint);
    plan_faults(s, 2, on_crash_check);
    plan_faults(s, p->n_paths, on_path);
    plan_faults(s, p->n_isolations, on_isolation);
    plan_faults(s, p->pairs.n_pauses, on_pause);
    plan_faults(s, p->pairs.n_links, on_link);
    plan_faults(s, p->pairs.n_double_deaths, on_double_death);
    plan_faults(s, p->pairs.n_outages, on_outage);
    plan_faults(s, p->pairs.n_promotions, on_promotion);
    plan_faults(s, p->pairs.n_lossy, on_lossy_promotion);
    plan_faults(s, p->pairs.n_severed, on_severed);
    plan_faults(s, p->pairs.n_switches, on_switch);
    plan_faults(s, p->pairs.n_losses, on_loss);
    events_in(&machine.events, p->span_us + 1000000, on_calm, s, 0, NULL);
}

/* --- running --- */

static bool is_over(const struct schedule *s)
{
    for (uint32_t i = 0; i < s->world.plan.n_workers; i++)
        if (!s->clients[i].is_done)
            return false;
    for (uint32_t i = 0; i < n_members(&s->world); i++)
        if (!node_is_safe(node_nth(&s->world, i)))
            return false;
    return true;
}

/* Who is not through, and what is not safe. */
static _Noreturn void fail_late(const struct schedule *s)
{
    char text[200] = "";
    int n = 0;

    for (uint32_t i = 0; i < s->world.plan.n_workers && n < 150; i++)
        if (!s->clients[i].is_done)
            n += snprintf(text + n, sizeof text - (size_t)n, "; rank %u is at clock %llu", i,
                          (unsigned long long)s->clients[i].clock);
    for (uint32_t i = 0; i < n_members(&s->world) && n < 150; i++) {
        const struct node *it = node_nth(&s->world, i);

        if (!node_is_safe(it))
            n += snprintf(text + n, sizeof text - (size_t)n, "; node %u%s is %s", it->index,
                          it->member ? "'" : "", it->is_open ? "not safe" : "down");
    }
    world_fail(&s->world, "not all is done, and nothing has gone wrong for long%s", text);
}

static void run(struct schedule *s)
{
    const struct plan *p = &s->world.plan;
    const uint64_t patience_us = PATIENCE_US + 4000 * (uint64_t)p->lease_ms;
    uint64_t limit_us = machine_now_us() + p->span_us + patience_us;

    while (!is_over(s)) {
        if (!machine_step())
            world_fail(&s->world, "nothing happens any more, and not all is done");
        if (machine_now_us() <= limit_us)
            continue;
        if (!pair_sends_a_person(&s->world))
            fail_late(s);
        limit_us = machine_now_us() + patience_us;
    }
}

static void check(struct schedule *s)
{
    for (uint32_t i = 0; i < n_members(&s->world); i++) {
        struct node *n = node_nth(&s->world, i);

        node_check_crash(n, false);
        node_check_crash(n, true);
        if (node_leads(n))
            node_check_end(n);
    }
}

static void count(const struct schedule *s, struct schedule_facts *ret)
{
    const struct world *w = &s->world;

    *ret = (struct schedule_facts){ .n_events = machine.events.n_run,
                                    .n_switches = machine.n_switches,
                                    .simulated_us = machine_now_us(),
                                    .n_pushes = w->push_history.n,
                                    .n_nodes = w->plan.n_nodes,
                                    .n_losses = w->lines && coord_has_lost_keys(),
                                    .n_misled = w->lines ? coord_n_misled() : 0 };
    for (uint32_t i = 0; i < w->plan.n_nodes; i++) {
        ret->n_recovered += s->world.nodes[i].n_recovered - (s->world.nodes[i].n_recovered > 0);
        ret->n_checkpoints += s->world.nodes[i].n_done;
        ret->n_sync_points += s->world.nodes[i].n_sync_points;
        ret->n_ops[i] = s->world.nodes[i].disk.n_ops;
    }
    enter_shard();
    for (uint32_t i = 0; i < w->plan.n_shards; i++) {
        const struct shard_counters *c = shard_counters(w->records[i]->life.core);

        ret->n_records += w->records[i]->history.n;
        ret->n_repeated += c->pushes_repeated;
        ret->n_fenced += c->pushes_fenced;
    }
}

static void begin_record(struct world *w, uint32_t member, uint32_t shard)
{
    struct shard_record *rec = &w->members[member][shard];
    const struct plan *p = &w->plan;

    rec->member = member;
    rec->shard = shard;
    model_init(&rec->model, p);
    model_init(&rec->base, p);
    rec->answers = malloc(sizeof *rec->answers * PLAN_N_WORKERS_MAX * WORLD_N_ANSWERS);
    assert(rec->answers);
    for (uint32_t i = 0; i < PLAN_N_WORKERS_MAX * WORLD_N_ANSWERS; i++)
        rec->answers[i].n_facts = UINT64_MAX;
}

static void end_record(struct shard_record *rec)
{
    if (!rec->answers)
        return;
    history_deinit(&rec->history);
    model_deinit(&rec->model);
    model_deinit(&rec->base);
    free(rec->answers);
    *rec = (struct shard_record){ 0 };
}

/* --- another layout --- */

/* All nodes end, one way or the other; nobody asks them for anything any more. */
static void stop_all(struct schedule *s)
{
    struct world *w = &s->world;
    /* What nobody has synced might be gone before the next layout has read it. */
    bool in_order = dice_once_in(&s->dice, 2) || w->plan.durability == WAL_NONE;

    for (uint32_t i = 0; i < w->plan.n_nodes; i++) {
        w->nodes[i].is_held = true;
        disk_heal(&w->nodes[i].disk);
        if (in_order || w->nodes[i].disk.is_gated) /* whose power would go with it */
            node_stop(&w->nodes[i]);
        else
            node_kill(&w->nodes[i], false);
    }
    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        while (w->nodes[i].process)
            if (!machine_step())
                world_fail(w, "node %u does not stop", i);
    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        disk_heal(&w->nodes[i].disk); /* a fault may have begun meanwhile */
}

/* What each shard of the next layout is to begin with. */
static void reshard_records(struct world *w, struct shard_record *from, uint32_t n_from)
{
    for (uint32_t k = 0; k < n_from; k++)
        model_release(&from[k].model);
    for (uint32_t i = 0; i < w->plan.n_shards; i++) {
        struct shard_record *rec = &w->members[0][i];

        begin_record(w, 0, i);
        w->records[i] = rec;
        for (uint32_t k = 0; k < n_from; k++)
            model_reshard(&rec->base, &from[k].model, i);
        model_copy(&rec->base, &rec->model);
    }
}

static void begin_nodes(struct schedule *s)
{
    struct world *w = &s->world;

    if (w->plan.n_nodes == 1 &&
        w->n_old_nodes == 1) { /* on its own directory: nothing is to be named */
        w->n_old_nodes = 0;
        w->nodes[0].n_saves = w->nodes[0].n_done = 0;
        w->nodes[0].is_held = false;
    } else {
        w->old_nodes = w->nodes;
        w->nodes = s->next_nodes;
        for (uint32_t i = 0; i < w->plan.n_nodes; i++)
            node_init(&w->nodes[i], w, i, w->n_old_nodes + i);
    }
    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        node_start(&w->nodes[i]);
}

/* Where a disk has lost what nobody had synced, shards may be of different steps, and psd refuses to reshard them. */
static bool may_go_on(const struct schedule *s)
{
    const struct world *w = &s->world;

    for (uint32_t i = 0; i < w->plan.n_shards; i++) {
        const struct model *m = &w->records[i]->model, *first = &w->records[0]->model;

        if (m->run != first->run || model_min_clock(m) != model_min_clock(first) ||
            m->n_tables != first->n_tables)
            return false;
    }
    return w->plan.n_next_nodes > 0;
}

/* The cluster goes on in the plan's other layout, and the job begins once more. */
static void go_on(struct schedule *s)
{
    struct world *w = &s->world;
    struct shard_record old[PLAN_N_SHARDS_MAX];
    uint32_t n_old = w->plan.n_shards;

    world_trace(w, "the layout changes: %u nodes of %u shards", w->plan.n_next_nodes,
                w->plan.next_shards_per_node);
    stop_all(s);
    for (struct process *p = machine.processes; p; p = p->next)
        process_kill(p); /* workers that were replaced, operators */
    memcpy(old, w->members[0], sizeof old);
    memset(w->members[0], 0, sizeof w->members[0]);
    w->n_old_nodes = w->plan.n_nodes;
    plan_go_on(&w->plan);
    reshard_records(w, old, n_old);
    for (uint32_t i = 0; i < n_old; i++)
        end_record(&old[i]);
    push_history_deinit(&w->push_history);
    begin_nodes(s);
    for (uint32_t i = 0; i < w->plan.n_workers; i++) {
        client_init(&s->clients[i], w, i);
        client_start(&s->clients[i]);
    }
    w->is_calm = machine.is_calm = false;
    plan_all_faults(s);
}

static void begin_pairs(struct schedule *s)
{
    struct world *w = &s->world;

    if (!w->plan.pairs.has_standby)
        return;
    pair_begin(w);
    coord_begin(w, pair_give_up);
    for (uint32_t i = 0; i < w->plan.n_nodes; i++) {
        if (!(w->plan.pairs.has_standby >> i & 1))
            continue;
        node_pair(&w->nodes[i], &s->seconds[i]);
        for (uint32_t k = 0; k < w->plan.shards_per_node; k++)
            begin_record(w, 1, i * w->plan.shards_per_node + k);
        node_start(&s->seconds[i]);
    }
}

static void begin(struct schedule *s, const struct schedule_config *config)
{
    struct world *w = &s->world;

    s->config = config;
    w->is_traced = config->is_traced;
    w->nodes = s->nodes;
    w->seconds = s->seconds;
    w->clients = s->clients;
    w->die_loses_power = -1;
    plan_make(&w->plan, config->seed);
    machine_begin(config->seed, w->plan.network_us);
    /* A large push over a slow connection takes longer than a lease, and its worker is declared dead. */
    machine.window_bytes = w->plan.dims[0] > PLAN_DIM_MAX ? 65536 : 64;
    os_begin(w);
    taps_begin(w);
    if (config->die_at != SCHEDULE_NEVER) {
        snprintf(w->what, sizeof w->what, " --node %u --die-at %llu%s", config->die_node,
                 (unsigned long long)config->die_at, config->die_loses_power ? " --cut" : "");
        w->die_loses_power = config->die_loses_power;
    }
    w->dice = dice_of(config->seed, 2);
    s->dice = dice_of(config->seed, 3);
    s->path_dice = dice_of(config->seed, 10);
    s->pair_dice = dice_of(config->seed, 21);
    s->loss_dice = dice_of(config->seed, 29);
    if (w->is_traced)
        plan_print(&w->plan, stdout);
    for (uint32_t i = 0; i < w->plan.n_shards; i++) {
        begin_record(w, 0, i);
        w->records[i] = &w->members[0][i];
    }
    for (uint32_t i = 0; i < w->plan.n_nodes; i++) {
        node_init(&w->nodes[i], w, i, i);
        node_start(&w->nodes[i]);
    }
    begin_pairs(s);
    if (config->die_at != SCHEDULE_NEVER)
        w->nodes[config->die_node].disk.die_at = config->die_at;
    else if (w->plan.dies_first != PLAN_NOBODY)
        w->nodes[w->plan.dies_first].disk.die_at = w->plan.dies_first_at;
    for (uint32_t i = 0; i < w->plan.n_workers; i++) {
        client_init(&s->clients[i], w, i);
        client_start(&s->clients[i]);
    }
    plan_all_faults(s);
}

static void end(struct schedule *s)
{
    struct world *w = &s->world;

    machine_end();
    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        node_deinit(&w->nodes[i]);
    for (uint32_t i = 0; i < w->n_old_nodes; i++)
        node_deinit(&w->old_nodes[i]);
    for (uint32_t i = 0; i < w->plan.n_nodes; i++)
        if (w->nodes[i].other)
            node_deinit(w->nodes[i].other);
    for (uint32_t i = 0; i < PLAN_N_SHARDS_MAX; i++) {
        end_record(&w->members[0][i]);
        end_record(&w->members[1][i]);
    }
    if (w->lines)
        coord_end();
    pair_end(w);
    push_history_deinit(&w->push_history);
}

void schedule_run(const struct schedule_config *config, struct schedule_facts *ret)
{
    struct schedule *s = calloc(1, sizeof *s);

    assert(s);
    begin(s, config);
    run(s);
    check(s);
    count(s, ret);
    while (s->world.plan.n_next_nodes && !s->world.is_calm && machine_step())
        ; /* who is stopped serves: it takes a last checkpoint then */
    run(s);
    if (may_go_on(s)) {
        go_on(s);
        run(s);
        check(s);
        ret->n_layouts = 1;
    }
    ret->digest = machine.digest;
    end(s);
    free(s);
}
