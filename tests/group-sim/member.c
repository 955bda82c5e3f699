/* One member: a driver of struct group, with a modelled log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "tests/group-sim/world.h"

#define GROUP_KEY "groups/0"

static void run_actions(struct member *m);

static struct member *other_of(struct member *m)
{
    return &m->w->members[1 - m->index];
}

struct group_lineage member_lineage(const struct member *m, uint64_t last)
{
    struct group_lineage l = { .history = m->history, .is_partial = m->is_partial };

    for (uint64_t i = 0; i < last; i++)
        if (m->entries[i].is_lead)
            group_lineage_add(&l, m->entries[i].term, i + 1);
    l.last = last;
    return l;
}

/* --- what is sent --- */

/* How long it takes, or UINT64_MAX: it is lost. */
static uint64_t draw_way(struct member *m)
{
    struct world *w = m->w;
    const uint64_t delay = world_draw(w, 4);

    if (w->stalled_until_ms[m->index] > w->now_ms)
        return w->drops[m->index] ? UINT64_MAX
                                  : w->stalled_until_ms[m->index] - w->now_ms + delay;
    if (w->is_quiet)
        return delay;
    return world_draw(w, 100) ? delay : world_draw(w, 2000);
}

/* To the other member, once or, now and then, twice. */
static struct event *post(struct member *m, enum event_kind kind)
{
    const uint64_t in_ms = draw_way(m);
    struct event *e;

    if (in_ms == UINT64_MAX || !other_of(m)->is_up)
        return NULL;
    e = world_event(m->w, kind, 1 - m->index, in_ms);
    e->from = m->index;
    return e;
}

static void post_message(struct member *m, const struct group_message *message)
{
    const int n = world_draw(m->w, 50) ? 1 : 2;

    for (int i = 0; i < n; i++) {
        struct event *e = post(m, EVENT_MESSAGE);

        if (e)
            e->message = *message;
    }
}

static uint64_t hash_at(const struct member *m, uint64_t number)
{
    return number ? m->entries[number - 1].hash : hash_mix(m->history);
}

static void ship(struct member *m)
{
    struct event *e;

    if (m->g.role != GROUP_PRIMARY || !m->peer_follows || m->peer_last >= m->last ||
        m->peer_boot != other_of(m)->boot)
        return;
    e = post(m, EVENT_SHIP);
    if (!e)
        return;
    e->ship = calloc(1, sizeof *e->ship);
    e->ship->term = m->g.term;
    e->ship->run = m->config.run;
    e->ship->first = m->peer_last + 1;
    e->ship->prev_hash = hash_at(m, m->peer_last);
    while (e->ship->n < WORLD_SHIP_MAX && m->peer_last + e->ship->n < m->last) {
        e->ship->entries[e->ship->n] = m->entries[m->peer_last + e->ship->n];
        e->ship->n++;
    }
}

/* --- the log --- */

static void append(struct member *m, uint64_t term, uint64_t value, bool is_lead)
{
    const uint64_t hash = hash_mix2(hash_at(m, m->last), hash_mix2(term, value));

    if (m->last == WORLD_LOG_MAX) {
        world_violate(m->w, "the log of this simulation is full");
        return;
    }
    m->entries[m->last++] = (struct entry){ term, value, hash, is_lead };
    group_on_appended(&m->g, term, m->last, is_lead);
}

static void acknowledge(struct member *m)
{
    const uint64_t limit = group_ack_limit(&m->g, world_clock(m));
    uint64_t until = m->w->is_synced ? m->n_disk : m->last;

    if (m->g.role != GROUP_PRIMARY)
        return;
    if (limit < until)
        until = limit;
    while (m->acked < until && !m->w->is_violated)
        check_ack(m, ++m->acked);
}

void member_push(struct member *m)
{
    if (!group_may_take(&m->g, world_clock(m)))
        return;
    append(m, m->g.term, ++m->w->n_values, false);
    acknowledge(m);
    ship(m);
}

static void begin_history(struct member *m, uint64_t history)
{
    m->history = history;
    for (uint64_t i = 0; i < m->last; i++)
        m->entries[i].hash = hash_mix2(i ? m->entries[i - 1].hash : hash_mix(history),
                                       hash_mix2(m->entries[i].term, m->entries[i].value));
}

static void lead(struct member *m, uint64_t term)
{
    m->acked = 0;
    m->is_partial = false;
    m->peer_follows = false;
    begin_history(m, m->g.log.history);
    append(m, term, ++m->w->n_values, true);
    world_trace(m->w, "member %d leads term %llu from record %llu", m->index,
                (unsigned long long)term, (unsigned long long)m->last);
    check_lead(m);
}

static void rewind_log(struct member *m, const struct event *e)
{
    struct member *from = other_of(m);

    if (e->rewind.kind == GROUP_BEGIN) {
        begin_history(m, m->config.history);
    } else if (e->rewind.kind == GROUP_REWIND) {
        m->last = e->rewind.last;
        m->n_disk = m->n_disk < m->last ? m->n_disk : m->last;
    } else if (!from->is_up || from->g.role != GROUP_PRIMARY) {
        struct event *later = world_event(m->w, EVENT_REWOUND, m->index, 50);

        later->rewind = e->rewind;
        return; /* there is nobody to copy from */
    } else {
        m->history = from->history;
        m->last =
            from->last - (from->last ? world_draw(m->w, from->last < 20 ? from->last : 20) : 0);
        m->n_disk = m->last;
        memcpy(m->entries, from->entries, m->last * sizeof *m->entries);
    }
    world_trace(m->w, "member %d %s record %llu", m->index,
                e->rewind.kind == GROUP_REWIND ? "is rewound to"
                                               : "has, from elsewhere or of a new history,",
                (unsigned long long)m->last);
    {
        const struct group_lineage log = member_lineage(m, m->last);

        group_on_rewound(&m->g, world_clock(m), &log);
    }
}

static void on_ship(struct member *m, const struct ship *s)
{
    struct event *e;

    if (!group_on_ship(&m->g, world_clock(m), s->term, s->run) || s->first > m->last + 1)
        return;
    if (hash_at(m, s->first - 1) != s->prev_hash)
        world_violate(m->w, "member %d follows term %llu, but record %llu is another one there",
                      m->index, (unsigned long long)s->term, (unsigned long long)s->first - 1);
    for (uint64_t i = 0; i < s->n; i++)
        if (s->first + i == m->last + 1)
            append(m, s->entries[i].term, s->entries[i].value, s->entries[i].is_lead);
        else if (hash_at(m, s->first + i) != s->entries[i].hash)
            world_violate(m->w, "member %d has another record %llu than its primary", m->index,
                          (unsigned long long)(s->first + i));
    e = post(m, EVENT_SHIPPED);
    if (!e)
        return;
    e->ship = calloc(1, sizeof *e->ship);
    e->ship->term = s->term;
    e->ship->run = m->config.run;
    e->ship->received = m->last;
    e->ship->durable = m->n_disk;
}

/* fsync: soon; else every 100 ms or so. */
static void write_disk(struct member *m)
{
    if (world_draw(m->w, m->disk_lag) == 0)
        m->n_disk = m->last;
    group_on_durable(&m->g, m->n_disk);
}

/* --- the store --- */

static void read_item(const struct coord_item *items, uint32_t n, struct event *e)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(items[i].key, GROUP_KEY) == 0) {
            e->at.is_there = group_record_read(items[i].value, &e->at.record) == 0;
            e->at.revision = items[i].mod_revision;
        }
}

/* Through the queue of the member, who may stand still; of an earlier boot nobody hears. */
static struct event *store_event(struct boot *b, enum event_kind kind)
{
    struct member *m = b->member;

    if (!m->is_up || m->boot != b->number)
        return NULL;
    return world_event(m->w, kind, m->index, 0);
}

static void on_store_event(void *arg, const struct coord_event *event)
{
    struct event *e;

    if (event->kind == COORD_AWAY || event->kind == COORD_BACK) {
        store_event(arg, event->kind == COORD_AWAY ? EVENT_AWAY : EVENT_BACK);
        return;
    }
    e = store_event(arg, EVENT_RECORD);
    if (!e)
        return;
    e->at.revision = event->revision;
    if (event->kind != COORD_REMOVED)
        read_item(event->items, event->n_items, e);
}

static void on_read(void *arg, const struct err *err, const struct coord_result *result)
{
    struct event *e = store_event(arg, err->status ? EVENT_UNREAD : EVENT_RECORD);

    if (!e || err->status)
        return;
    e->at.revision = result->revision;
    read_item(result->items, result->n_items, e);
}

static void on_written(void *arg, const struct err *err, const struct coord_result *result)
{
    struct event *e = store_event(arg, EVENT_WRITTEN);

    if (e && !err->status && result->is_made)
        e->at.revision = result->revision;
}

static void write_record(struct member *m, const struct group_action *a)
{
    char text[GROUP_RECORD_MAX];
    const struct coord_write write = {
        .change = COORD_PUT, .key = GROUP_KEY, .if_revision = a->if_revision, .value = text
    };

    group_record_print(&a->record, text);
    world_trace(m->w, "member %d writes over %lld: %s", m->index, (long long)a->if_revision,
                text);
    m->client->ops->put_if(m->client, &write, 1, m->w->call_ms, on_written, &m->boots[m->boot]);
}

/* --- driving the group --- */

static void run_actions(struct member *m)
{
    struct group_action a;

    while (m->is_up && group_next_action(&m->g, &a)) {
        struct event *e;

        switch (a.kind) {
        case GROUP_SEND:
            post_message(m, &a.message);
            break;
        case GROUP_WRITE:
            write_record(m, &a);
            break;
        case GROUP_READ:
            m->client->ops->get(m->client, GROUP_KEY, false, m->w->call_ms, on_read,
                                &m->boots[m->boot]);
            break;
        case GROUP_SYNC: /* the next tick may have done it */
            break;
        case GROUP_LEAD:
            lead(m, a.term);
            break;
        case GROUP_WHOLE:
            m->is_partial = false;
            break;
        case GROUP_BEGIN:
        case GROUP_REWIND:
        case GROUP_COPY:
            e = world_event(m->w, EVENT_REWOUND, m->index, 1 + world_draw(m->w, 200));
            e->rewind.last = a.last;
            e->rewind.kind = a.kind;
            m->is_partial = a.kind != GROUP_BEGIN;
            break;
        case GROUP_RESTART:
            member_kill(m);
            world_event(m->w, EVENT_START, m->index, 1 + world_draw(m->w, 50));
            break;
        }
    }
}

static void note_peer(struct member *m, uint64_t term, uint64_t received, int from)
{
    if (m->g.role != GROUP_PRIMARY || term != m->g.term)
        return;
    m->peer_follows = true;
    m->peer_last = received;
    m->peer_boot = m->w->members[from].boot;
}

static void handle(struct member *m, struct event *e, uint64_t now)
{
    switch (e->kind) {
    case EVENT_TICK:
        if (!m->g.accepts_loss && m->g.role != GROUP_SEALED && !m->w->is_person_asked)
            m->person_run = 0;
        write_disk(m);
        acknowledge(m);
        group_tick(&m->g, now);
        ship(m);
        break;
    case EVENT_MESSAGE:
        group_on_message(&m->g, now, &e->message);
        if (e->message.kind == GROUP_HEART_REPLY && e->message.follows) {
            note_peer(m, e->message.term, e->message.received, e->from);
            if (m->config.has_many_logs)
                group_on_received(&m->g, now, e->message.term, e->message.run,
                                  e->message.received, e->message.durable);
        }
        break;
    case EVENT_SHIP:
        on_ship(m, e->ship);
        break;
    case EVENT_SHIPPED:
        group_on_received(&m->g, now, e->ship->term, e->ship->run, e->ship->received,
                          e->ship->durable);
        note_peer(m, e->ship->term, e->ship->received, e->from);
        break;
    case EVENT_GONE:
        if (!other_of(m)->is_up)
            group_on_gone(&m->g, now);
        break;
    case EVENT_RECORD:
        group_on_record(&m->g, now, e->at.is_there ? &e->at.record : NULL, e->at.revision);
        break;
    case EVENT_WRITTEN:
        group_on_written(&m->g, now, e->at.revision);
        break;
    case EVENT_UNREAD:
        group_on_unread(&m->g, now);
        break;
    case EVENT_AWAY:
        group_on_away(&m->g, now);
        break;
    case EVENT_BACK:
        group_on_back(&m->g, now);
        break;
    case EVENT_REWOUND:
        rewind_log(m, e);
        break;
    default:
        break;
    }
}

void member_event(struct member *m, struct event *e)
{
    handle(m, e, world_clock(m));
    run_actions(m);
    if (!m->is_up)
        return;
    acknowledge(m);
    check_serves(m);
}

void member_start(struct member *m)
{
    struct world *w = m->w;
    struct group_lineage log;

    if (++m->boot == WORLD_BOOTS_MAX) {
        world_violate(w, "member %d was started %u times", m->index, WORLD_BOOTS_MAX);
        return;
    }
    m->is_up = true;
    m->peer_follows = false;
    m->paused_until_ms = 0;
    m->boots[m->boot] = (struct boot){ m, m->boot };
    snprintf(m->config.name, sizeof m->config.name, "m%d", m->index);
    m->config.run = ++w->n_runs;
    if (w->is_person_asked && m->config.may_create)
        m->person_run = m->config.run;
    m->config.history = world_draw(w, UINT64_MAX - 1) + 1;
    m->config.ack = w->ack;
    m->config.is_synced = w->is_synced;
    m->config.has_many_logs = w->theme & 1;
    m->config.failover_after_ms = 700;
    m->config.standby_patience_ms = 2000;
    log = member_lineage(m, m->last);
    world_trace(w, "member %d starts as run %llu with %llu records", m->index,
                (unsigned long long)m->config.run, (unsigned long long)m->last);
    group_init(&m->g, &m->config, &log, world_clock(m));
    m->client = coord_mem_client(w->store);
    m->client_number = coord_mem_number(m->client);
    m->watch = m->client->ops->watch(m->client, "groups/", on_store_event, &m->boots[m->boot]);
    world_event(w, EVENT_TICK, m->index, world_draw(w, 20));
}

/* kill -9: of the log is left what is on the disk, and of the rest what happened to be written. */
void member_kill(struct member *m)
{
    struct world *w = m->w;
    const bool deposed = m->g.role == GROUP_DEPOSED;

    m->is_up = false;
    m->client->ops->unwatch(m->watch);
    m->last = m->n_disk += deposed            ? 0
                           : world_draw(w, 2) ? 0
                                              : world_draw(w, m->last - m->n_disk + 1);
    world_trace(w, "member %d %s with %llu records left", m->index,
                deposed ? "ends" : "is killed", (unsigned long long)m->last);
    check_excuse(w);
    if (other_of(m)->is_up && w->stalled_until_ms[m->index] <= w->now_ms)
        world_event(w, EVENT_GONE, 1 - m->index, 1 + world_draw(w, 5))->from = m->index;
}
