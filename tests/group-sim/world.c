#include "tests/group-sim/world.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define TICK_MS 20u

uint64_t world_draw(struct world *w, uint64_t below)
{
    return hash_mix2(w->seed, w->n_draws++) % below;
}

void world_violate(struct world *w, const char *fmt, ...)
{
    va_list args;
    size_t n;

    if (w->is_violated)
        return; /* the first one tells most */
    w->is_violated = true;
    n = (size_t)snprintf(w->violation, sizeof w->violation,
                         "at %llu ms: ", (unsigned long long)w->now_ms);
    va_start(args, fmt);
    vsnprintf(w->violation + n, sizeof w->violation - n, fmt, args);
    va_end(args);
}

void world_trace(const struct world *w, const char *fmt, ...)
{
    va_list args;

    if (!w->is_traced)
        return;
    printf("%6llu ms  ", (unsigned long long)w->now_ms);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

/* --- events, in a binary heap --- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->order < b->order;
}

static void heap_add(struct world *w, struct event *e)
{
    uint32_t i = w->n_events++;

    assert(w->n_events <= WORLD_EVENTS_MAX);
    for (; i && is_before(e, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
}

static struct event *heap_take(struct world *w)
{
    struct event *first = w->heap[0], *last = w->heap[--w->n_events];
    uint32_t i = 0, child;

    while ((child = 2 * i + 1) < w->n_events) {
        if (child + 1 < w->n_events && is_before(w->heap[child + 1], w->heap[child]))
            child++;
        if (!is_before(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return first;
}

struct event *world_event(struct world *w, enum event_kind kind, int member, uint64_t in_ms)
{
    struct event *e = calloc(1, sizeof *e);

    e->kind = kind;
    e->member = member;
    e->boot = w->members[member].boot;
    e->due_ms = w->now_ms + in_ms;
    e->order = w->n_orders++;
    heap_add(w, e);
    return e;
}

uint64_t world_clock(const struct member *m)
{
    return m->offset_ms + (uint64_t)((double)m->w->now_ms * m->rate);
}

static void event_free(struct event *e)
{
    if (e->kind == EVENT_SHIP || e->kind == EVENT_SHIPPED)
        free(e->ship);
    free(e);
}

/* --- a schedule --- */

static bool is_for_a_member(const struct event *e)
{
    return e->kind != EVENT_FAULT && e->kind != EVENT_PUSH && e->kind != EVENT_START &&
           e->kind != EVENT_KILL && e->kind != EVENT_PAUSE && e->kind != EVENT_STORE_BACK;
}

/* A pushing client tries whoever takes its push. */
static void push(struct world *w)
{
    const int first = (int)world_draw(w, WORLD_MEMBERS);

    for (int i = 0; i < WORLD_MEMBERS; i++) {
        struct member *m = &w->members[(first + i) % WORLD_MEMBERS];

        if (m->is_up && m->paused_until_ms <= w->now_ms)
            member_push(m);
    }
    world_event(w, EVENT_PUSH, 0, (w->is_quiet ? 20 : 1) + world_draw(w, 2 * w->push_ms));
}

static void run_event(struct world *w, struct event *e)
{
    struct member *m = &w->members[e->member];

    if (!is_for_a_member(e)) {
        if (e->kind == EVENT_FAULT)
            faults_inject(w);
        else if (e->kind == EVENT_PUSH)
            push(w);
        else if (e->kind == EVENT_START && !m->is_up)
            member_start(m);
        else if (e->kind == EVENT_KILL || e->kind == EVENT_PAUSE)
            faults_later(w, e);
        else if (e->kind == EVENT_STORE_BACK)
            coord_mem_set_away(w->store, m->client_number, false);
    } else if (m->is_up && e->boot == m->boot) {
        if (m->paused_until_ms > w->now_ms) {
            e->due_ms = m->paused_until_ms;
            if (e->kind == EVENT_TICK && world_draw(w, 2) == 0)
                e->order = 0; /* before all that has come: a driver that does it wrong */
            heap_add(w, e);
            return;
        }
        if (e->kind == EVENT_TICK)
            world_event(w, EVENT_TICK, m->index, TICK_MS - 5 + world_draw(w, 10));
        member_event(m, e);
    }
    event_free(e);
}

/* All are up, one serves with the other in sync, and all that it had when that began is acknowledged. */
static bool is_at_rest(struct world *w)
{
    const struct member *p = NULL;

    for (int i = 0; i < WORLD_MEMBERS; i++) {
        const struct member *m = &w->members[i];

        if (!m->is_up)
            return false;
        if (group_may_take(&m->g, world_clock(m)))
            p = m;
    }
    if (!p || p->g.term != w->truth.term || p->last == 0 ||
        (w->ack != GROUP_ACK_NOTHING && (!w->truth.in_sync || !p->g.record.in_sync))) {
        w->rest_from = 0;
        return false;
    }
    if (!w->rest_from)
        w->rest_from = p->last;
    return p->acked >= w->rest_from;
}

/* All faults end. */
static void calm_down(struct world *w)
{
    const struct coord_mem_faults none = { .delay_ms = 3 };

    w->is_quiet = true;
    coord_mem_set_faults(w->store, &none);
    for (int i = 0; i < WORLD_MEMBERS; i++) {
        struct member *m = &w->members[i];

        w->stalled_until_ms[i] = 0;
        coord_mem_set_away(w->store, m->client_number, false);
        if (!m->is_up)
            world_event(w, EVENT_START, i, 1 + world_draw(w, 500));
    }
}

/* After a lost disk the group may wait for a person: the longer log shall serve. */
static void help(struct world *w)
{
    struct group_lineage logs[WORLD_MEMBERS];
    struct member *m;

    for (int i = 0; i < WORLD_MEMBERS; i++)
        logs[i] = member_lineage(&w->members[i], w->members[i].last);
    m = &w->members[group_lineage_compare(&logs[0], &logs[1]) > 0 ? 0 : 1];
    w->is_helped = true;
    m->person_run = m->config.run;
    world_trace(w, "a person promotes member %d", m->index);
    group_accept_loss(&m->g, world_clock(m));
}

static void run_events(struct world *w)
{
    while (!w->is_violated) {
        const uint64_t store_ms = coord_mem_advance(w->store, w->now_ms);
        struct event *e = w->heap[0];

        check_update_truth(w);
        if (w->is_violated)
            return;
        if (store_ms < e->due_ms) {
            w->now_ms = store_ms;
            continue;
        }
        if (e->due_ms > w->now_ms)
            w->now_ms = e->due_ms;
        if (!w->is_quiet && w->now_ms >= WORLD_FAULTS_MS)
            calm_down(w);
        run_event(w, heap_take(w));
        if (w->is_quiet && is_at_rest(w))
            return;
        if (w->has_lost && !w->is_helped && w->now_ms > WORLD_HELP_MS)
            help(w);
        if (w->now_ms > WORLD_END_MS) {
            char why[WORLD_MEMBERS][GROUP_WHY_MAX];

            for (int i = 0; i < WORLD_MEMBERS; i++)
                group_why(&w->members[i].g, world_clock(&w->members[i]), why[i]);
            world_violate(w, "it does not come to rest: roles %d and %d; %.80s; %.80s",
                          w->members[0].g.role, w->members[1].g.role, why[0], why[1]);
        }
    }
}

static void init(struct world *w, uint64_t seed)
{
    static const struct {
        enum group_ack ack;
        bool is_synced;
    } modes[] = { { GROUP_ACK_RECEIVED, false },
                  { GROUP_ACK_RECEIVED, true },
                  { GROUP_ACK_RECEIVED, false },
                  { GROUP_ACK_DURABLE, true },
                  { GROUP_ACK_NOTHING, true } };
    const uint32_t pushes_ms[] = { 4, 20, 100 };
    uint64_t mode;

    w->seed = hash_mix(seed);
    w->n_draws = w->now_ms = w->n_runs = w->n_values = 0;
    w->n_orders = 1;
    w->rest_from = 0;
    w->truth_revision = 0;
    w->is_true = w->is_quiet = w->is_violated = false;
    w->is_person_asked = w->has_lost = w->is_helped = false;
    memset(w->promises, 0, sizeof w->promises);
    memset(w->acker, 0, sizeof w->acker);
    mode = world_draw(w, 16) % COUNT_OF(modes);
    w->ack = modes[mode].ack;
    w->is_synced = modes[mode].is_synced;
    w->theme = world_draw(w, 1000);
    w->call_ms = world_draw(w, 2) ? 1000 : 200;
    w->push_ms = pushes_ms[world_draw(w, 3)];
    w->store = coord_mem_new(w->seed + 1);
    for (int i = 0; i < WORLD_MEMBERS; i++) {
        struct member *m = &w->members[i];

        m->w = w;
        m->index = i;
        m->is_up = false;
        m->person_run = 0;
        m->is_partial = false;
        m->boot = 0;
        m->disk_lag = w->is_synced ? (world_draw(w, 3) ? 2 : 15) : 5;
        m->rate = 1 + ((double)world_draw(w, 2001) - 1000) / 100000; /* 1 % */
        m->offset_ms = 1000000 * (world_draw(w, 100) + 1);
        m->paused_until_ms = m->last = m->n_disk = m->history = 0;
        m->config.may_create = i == 0;
        w->stalled_until_ms[i] = 0;
        member_start(m);
    }
    world_event(w, EVENT_PUSH, 0, 1);
    world_event(w, EVENT_FAULT, 0, 500);
}

bool world_run(struct world *w, uint64_t seed, struct world_counts *counts)
{
    w->counts = counts;
    init(w, seed);
    run_events(w);
    while (w->n_events)
        event_free(heap_take(w));
    for (int i = 0; i < WORLD_MEMBERS; i++)
        w->members[i].is_up = false;
    coord_mem_free(w->store);
    return !w->is_violated;
}
