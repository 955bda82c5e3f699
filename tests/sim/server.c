#include "tests/sim/server.h"

#include <assert.h>
#include <stdlib.h>

#include "tests/sim/desk.h"
#include "tests/sim/pulls.h"

#define TICK_US 20000u
#define JOB "job"

struct server_line {
    struct server_line *next;
    struct net_connection *from;
    struct message message;
    bool is_under_way;
    struct push push;
};

static void on_tick(void *owner, uint64_t life, void *data);
static void on_slice(void *owner, uint64_t life, void *data);

static void advance(struct server *s)
{
    enter_shard();
    if (shard_advance(s->core, world_ms(s->world)))
        pulls_retry(s);
}

/* --- pushes --- */

static void tell_pushed(struct server *s, struct net_connection *c, struct message *m,
                        int status, const struct shard_push_result *result)
{
    m->min_clock = result->min_clock;
    desk_answer(s, c, m, status ? status : result->status);
    pulls_retry(s);
}

/* s->asking, which goes into the line: what is under way points to its push. */
static void line_up(struct server *s, struct net_connection *c, const struct message *m,
                    bool is_under_way)
{
    struct server_line *l = s->asking, **at = &s->line;

    s->asking = NULL;
    l->from = c;
    l->message = *m;
    l->is_under_way = is_under_way;
    while (*at && !is_under_way)
        at = &(*at)->next;
    l->next = *at;
    *at = l;
    if (!s->line->next)
        events_in(&s->world->events, 50, on_slice, s, s->life, NULL);
}

static bool is_in_line(const struct server *s, const struct net_connection *c)
{
    for (const struct server_line *l = s->line; l; l = l->next)
        if (l->from == c)
            return true;
    return false;
}

static void on_push(struct server *s, struct net_connection *c, struct message *m)
{
    enum shard_push_state state = SHARD_PUSH_JUDGED;
    struct shard_push_result result = { 0 };
    struct worker *worker;
    int status = desk_find_worker(s, c, &worker);

    enter_shard();
    if (status == PS_EFENCED)
        shard_push_fenced(s->core);
    if (!s->asking)
        s->asking = calloc(1, sizeof *s->asking);
    assert(s->asking);
    if (!status) {
        ledger_fill(m->push, &s->world->plan, &s->asking->push);
        status = shard_push_begin(s->core, worker, &s->asking->push, world_ms(s->world),
                                  &result, &state);
    }
    if (state != SHARD_PUSH_JUDGED) {
        world_tell(s->world, "shard %u: push %llu of rank %u waits", s->shard,
                   (unsigned long long)m->push->seq, c->worker);
        line_up(s, c, m, state == SHARD_PUSH_UNDER_WAY);
        return;
    }
    tell_pushed(s, c, m, status, &result);
}

/* Begins with the first, or goes on. True: it is judged. */
static bool judge_first(struct server *s, int *ret_status, struct shard_push_result *ret)
{
    enum shard_push_state state = SHARD_PUSH_JUDGED;
    struct server_line *l = s->line;
    struct worker *worker;

    enter_shard();
    *ret = (struct shard_push_result){ 0 };
    if (l->is_under_way) {
        *ret_status = shard_push_more(s->core, world_ms(s->world), ret, &state);
    } else {
        *ret_status = desk_find_worker(s, l->from, &worker);
        if (!*ret_status)
            *ret_status =
                shard_push_begin(s->core, worker, &l->push, world_ms(s->world), ret, &state);
        l->is_under_way = state == SHARD_PUSH_UNDER_WAY;
    }
    return state == SHARD_PUSH_JUDGED;
}

static void release(struct server *s, struct net_connection *c)
{
    struct server_waiting **at = &s->held;

    while (*at && !is_in_line(s, c)) {
        struct server_waiting *w = *at;

        if (w->from != c) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        server_request(s, c, &w->message);
        free(w);
        at = &s->held;
    }
}

static void tell_first(struct server *s, int status, const struct shard_push_result *result)
{
    struct server_line *l = s->line;

    s->line = l->next;
    tell_pushed(s, l->from, &l->message, status, result);
    release(s, l->from);
    free(l);
}

static void on_slice(void *owner, uint64_t life, void *data)
{
    struct server *s = owner;
    struct shard_push_result result;
    int status;

    (void)data;
    if (!life || life != s->life)
        return;
    while (s->line && judge_first(s, &status, &result))
        tell_first(s, status, &result);
    if (s->line)
        events_in(&s->world->events, dice_from(&s->world->dice, 20, 300), on_slice, s, life,
                  NULL);
}

static void finish_first(struct server *s)
{
    struct shard_push_result result;
    int status;

    enter_shard();
    shard_settle(s->core);
    if (judge_first(s, &status, &result))
        tell_first(s, status, &result);
}

/* --- joins and the rest --- */

static void on_join(struct server *s, struct net_connection *c, struct message *m)
{
    const struct plan *p = &s->world->plan;
    struct roster_join join = { .job = JOB,
                                .rank = c->worker,
                                .n_workers = p->n_workers,
                                .incarnation = m->incarnation,
                                .mode = p->mode,
                                .bound = p->bound,
                                .clock = m->clock,
                                .last_acked = m->last,
                                .name = m->name };
    struct worker *worker;
    struct err err = { 0 };
    int status;

    enter_shard();
    shard_settle(s->core);
    status = roster_join(shard_roster(s->core), &join, world_ms(s->world), &worker, &err);
    if (status == PS_EFENCED)
        m->fenced_below = roster_fence(shard_roster(s->core), JOB, c->worker);
    if (!status) {
        c->has_joined = true;
        c->incarnation = m->incarnation;
        c->join_number = worker->join_number;
        m->last = worker->last_seq;
        m->clock = worker->clock;
        m->min_clock = job_min_clock(worker->job);
        pulls_retry(s);
    }
    desk_answer(s, c, m, status);
}

static void on_table(struct server *s, struct net_connection *c, struct message *m)
{
    uint32_t id = UINT32_MAX;
    struct err err = { 0 };
    int status;

    enter_shard();
    status = shard_table_ask(s->core, &s->world->plan.specs[m->table], false, &id, &err);
    if (!status && id != m->table)
        world_fail(s->world, "shard %u: table %u has number %u", s->shard, m->table, id);
    desk_answer(s, c, m, status);
}

static void on_leave(struct server *s, struct net_connection *c, struct message *m)
{
    struct worker *worker;
    int status = desk_find_worker(s, c, &worker);

    enter_shard();
    if (!status) {
        shard_settle(s->core);
        roster_leave(shard_roster(s->core), worker);
        c->has_joined = false;
    }
    desk_answer(s, c, m, status);
    if (!status) {
        (void)shard_advance(s->core, world_ms(s->world));
        pulls_retry(s);
    }
}

void server_request(struct server *s, struct net_connection *c, const struct message *asked)
{
    struct message m = *asked;
    struct worker *worker;

    if (is_in_line(s, c)) {
        desk_keep(&s->held, c, asked);
        return;
    }
    switch (m.type) {
    case MESSAGE_JOIN:
        on_join(s, c, &m);
        break;
    case MESSAGE_TABLE:
        on_table(s, c, &m);
        break;
    case MESSAGE_PUSH:
        on_push(s, c, &m);
        break;
    case MESSAGE_PULL:
        pulls_ask(s, c, &m);
        break;
    case MESSAGE_BEAT:
        desk_answer(s, c, &m, desk_find_worker(s, c, &worker));
        break;
    case MESSAGE_LEAVE:
        on_leave(s, c, &m);
        break;
    }
}

void server_closed(struct server *s, struct net_connection *c)
{
    struct server_line **at = &s->line;

    desk_drop(&s->parked, c);
    desk_drop(&s->held, c);
    if (s->line && s->line->is_under_way && s->line->from == c)
        finish_first(s);
    while (*at) {
        struct server_line *l = *at;

        if (l->from != c) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
    logger_drop(&s->log, c);
}

/* --- life --- */

static void on_tick(void *owner, uint64_t life, void *data)
{
    struct server *s = owner;
    struct worker *worker;

    (void)data;
    if (!life || life != s->life)
        return;
    for (const struct server_waiting *w = s->parked; w; w = w->next)
        (void)!desk_find_worker(s, w->from, &worker); /* who waits is there */
    for (const struct server_line *l = s->line; l; l = l->next)
        if (!l->is_under_way)
            (void)!desk_find_worker(s, l->from, &worker);
    advance(s);
    events_in(&s->world->events, TICK_US, on_tick, s, life, NULL);
}

void server_init(struct server *s, struct world *world, uint32_t shard, struct disk *disk)
{
    struct shard_book *book = &world->books[shard];

    *s = (struct server){ .world = world, .book = book, .shard = shard };
    s->log = (struct logger){ .world = world, .book = book, .disk = disk, .shard = shard };
    s->pull = calloc(1, sizeof *s->pull);
    assert(s->pull);
}

void server_deinit(struct server *s)
{
    server_stop(s);
    free(s->asking);
    free(s->pull);
}

int server_start(struct server *s, uint64_t life, struct shard *core, const char *log_dir,
                 const struct log_identity *identity, const struct log_end *end,
                 struct err *err)
{
    int status = logger_start(&s->log, life, log_dir, identity, end, err);

    enter_shard();
    if (status)
        return status;
    s->life = life;
    s->core = core;
    shard_listen(core, &s->log.recorder.journal);
    events_in(&s->world->events, TICK_US, on_tick, s, life, NULL);
    return 0;
}

void server_stop(struct server *s)
{
    enter_shard();
    if (!s->life)
        return;
    logger_stop(&s->log);
    shard_free(s->core);
    s->core = NULL;
    desk_drop(&s->parked, NULL);
    desk_drop(&s->held, NULL);
    while (s->line) {
        struct server_line *l = s->line;

        s->line = l->next;
        free(l);
    }
    s->life = 0;
}

bool server_is_settled(const struct server *s)
{
    return !s->line || !s->line->is_under_way;
}
