/* What goes wrong. */
#include <stdlib.h>
#include <string.h>

#include "tests/group-sim/world.h"

static void kill_one(struct world *w, int i, uint64_t down_ms)
{
    struct member *m = &w->members[i];

    if (!m->is_up)
        return;
    w->counts->n_kills++;
    member_kill(m);
    world_event(w, EVENT_START, i, 1 + world_draw(w, down_ms));
}

static void pause_one(struct world *w, int i)
{
    static const uint64_t most_ms[] = { 100, 800, 1500, 6000 };

    const uint64_t until_ms = w->now_ms + 1 + world_draw(w, most_ms[world_draw(w, 4)]);

    if (until_ms >
        w->members[i].paused_until_ms) /* what waits for its end is in the queue already */
        w->members[i].paused_until_ms = until_ms;
    world_trace(w, "member %d stands still until %llu ms", i, (unsigned long long)until_ms);
}

static void stall(struct world *w, int i)
{
    w->stalled_until_ms[i] = w->now_ms + 1 + world_draw(w, world_draw(w, 2) ? 1200 : 5000);
    w->drops[i] = world_draw(w, 2);
    world_trace(w, "what member %d sends is %s until %llu ms", i,
                w->drops[i] ? "lost" : "held up", (unsigned long long)w->stalled_until_ms[i]);
}

static void take_store_away(struct world *w, int i)
{
    coord_mem_set_away(w->store, w->members[i].client_number, true);
    world_trace(w, "member %d is cut off from the store", i);
    world_event(w, EVENT_STORE_BACK, i, 1 + world_draw(w, 4000));
}

static void change_store(struct world *w)
{
    const struct coord_mem_faults faults = { .delay_ms = 1 + (uint32_t)world_draw(w, 30),
                                             .late_ms = (uint32_t)world_draw(w, 3000),
                                             .lost_requests = (uint32_t)world_draw(w, 200),
                                             .lost_answers = (uint32_t)world_draw(w, 300) };
    const struct coord_mem_faults none = { .delay_ms = 3 };

    coord_mem_set_faults(w->store, world_draw(w, 2) ? &faults : &none);
    if (world_draw(w, 4) == 0)
        coord_mem_compact(w->store);
}

/* A disk that is lost, of a member that is down while the other has everything. */
static void lose_disk(struct world *w)
{
    const int i = (int)world_draw(w, WORLD_MEMBERS);
    const struct member *other = &w->members[1 - i];

    check_update_truth(w);
    if (!w->is_true || !other->is_up ||
        !(w->truth.primary_run == other->config.run ||
          (w->truth.in_sync && w->truth.standby_run == other->config.run)))
        return;
    kill_one(w, i, world_draw(w, 2) ? 100 : 3000);
    w->has_lost = true;
    world_trace(w, "the disk of member %d is lost", i);
    w->members[i].last = w->members[i].n_disk = w->members[i].history = 0;
    if (world_draw(w, 2)) { /* and the other one cannot say so */
        take_store_away(w, 1 - i);
        world_event(w, EVENT_PAUSE, 1 - i, 200 + world_draw(w, 1500));
    }
    check_excuse(w);
}

/* A person promotes the one that is there, while the other is down. */
static void accept_loss(struct world *w)
{
    for (int i = 0; i < WORLD_MEMBERS; i++) {
        struct member *m = &w->members[i];

        if (m->is_up && !w->members[1 - i].is_up && m->g.role != GROUP_PRIMARY && m->last > 0) {
            m->person_run = m->config.run;
            w->has_lost = true;
            world_trace(w, "a person promotes member %d", i);
            group_accept_loss(&m->g, world_clock(m));
        }
    }
}

/* The store has lost everything. A person has one of the members create the group anew. */
static void lose_store(struct world *w)
{
    const int creator = (int)world_draw(w, WORLD_MEMBERS);

    if (!coord_mem_find(w->store, "groups/0") || w->members[creator].n_disk == 0)
        return;
    for (int i = 0; i < WORLD_MEMBERS; i++)
        if (w->members[i].is_up)
            member_kill(&w->members[i]);
    coord_mem_wipe(w->store);
    world_trace(w, "the store has lost everything");
    memset(w->acker, 0, sizeof w->acker);
    for (int i = 0; i < WORLD_MEMBERS; i++) {
        w->members[i].config.may_create = i == creator;
        world_event(w, EVENT_START, i, 1 + world_draw(w, 1000));
    }
    w->is_person_asked = w->has_lost = true;
}

static void switch_over(struct world *w)
{
    for (int i = 0; i < WORLD_MEMBERS; i++)
        if (w->members[i].is_up &&
            group_switch(&w->members[i].g, world_clock(&w->members[i])) == 0)
            w->counts->n_switches++;
}

static void kill_both(struct world *w)
{
    kill_one(w, 0, 3000);
    kill_one(w, 1, 3000);
}

/* One, and soon the other, which may have taken over by then. */
static void kill_in_turn(struct world *w, int i)
{
    kill_one(w, i, 3000);
    world_event(w, EVENT_KILL, 1 - i, 1 + world_draw(w, world_draw(w, 2) ? 40 : 1200));
}

static void stall_both(struct world *w)
{
    stall(w, 0);
    stall(w, 1);
}

static void take_store_away_from_both(struct world *w)
{
    take_store_away(w, 0);
    take_store_away(w, 1);
}

enum fault {
    FAULT_KILL,
    FAULT_KILL_BOTH,
    FAULT_KILL_IN_TURN,
    FAULT_PAUSE,
    FAULT_STALL,
    FAULT_STALL_BOTH,
    FAULT_AWAY,
    FAULT_AWAY_BOTH,
    FAULT_STORE,
    FAULT_SWITCH,
    FAULT_DISK,
    FAULT_PERSON,
    FAULT_STORE_LOST,
    N_FAULTS,
};

/* A schedule has one of these weights: what hides behind two faults at once needs them often. */
static const uint32_t weights[][N_FAULTS] = {
    { 16, 6, 6, 14, 16, 6, 8, 4, 10, 10, 4, 3, 1 }, /* everything */
    { 12, 2, 2, 12, 10, 2, 4, 0, 50, 6, 0, 0, 0 },  /* a bad store */
    { 10, 10, 40, 4, 4, 0, 0, 0, 2, 10, 0, 2, 2 },  /* crashes */
    { 4, 0, 0, 30, 30, 10, 6, 2, 4, 14, 0, 0, 0 },  /* silence */
    { 6, 4, 4, 10, 6, 2, 10, 4, 4, 10, 40, 4, 4 },  /* disks */
};

static enum fault draw_fault(struct world *w)
{
    const uint32_t *weight = weights[w->theme % COUNT_OF(weights)];
    uint64_t sum = 0, dice;
    uint32_t i = 0;

    for (uint32_t j = 0; j < N_FAULTS; j++)
        sum += weight[j];
    dice = world_draw(w, sum);
    while (dice >= weight[i])
        dice -= weight[i++];
    return i;
}

static void inject(struct world *w, enum fault fault, int i)
{
    switch (fault) {
    case FAULT_KILL:
        kill_one(w, i, world_draw(w, 2) ? 50 : 4000);
        break;
    case FAULT_KILL_BOTH:
        kill_both(w);
        break;
    case FAULT_KILL_IN_TURN:
        kill_in_turn(w, i);
        break;
    case FAULT_PAUSE:
        pause_one(w, i);
        break;
    case FAULT_STALL:
        stall(w, i);
        break;
    case FAULT_STALL_BOTH:
        stall_both(w);
        break;
    case FAULT_AWAY:
        take_store_away(w, i);
        break;
    case FAULT_AWAY_BOTH:
        take_store_away_from_both(w);
        break;
    case FAULT_STORE:
        change_store(w);
        break;
    case FAULT_SWITCH:
        switch_over(w);
        break;
    case FAULT_DISK:
        lose_disk(w);
        break;
    case FAULT_PERSON:
        accept_loss(w);
        break;
    case FAULT_STORE_LOST:
        lose_store(w);
        break;
    case N_FAULTS:
        break;
    }
}

void faults_inject(struct world *w)
{
    if (w->is_quiet)
        return;
    inject(w, draw_fault(w), (int)world_draw(w, WORLD_MEMBERS));
    world_event(w, EVENT_FAULT, 0, 1 + world_draw(w, 1200));
}

void faults_later(struct world *w, const struct event *e)
{
    if (w->is_quiet)
        return;
    if (e->kind == EVENT_KILL)
        kill_one(w, e->member, 3000);
    else
        pause_one(w, e->member);
}
