#include "tests/sim/server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/keys.h"

#define TICK_US 20000u
#define JOB "job"

struct server_waiting {
    struct server_waiting *next;
    struct net_connection *from;
    struct message message;
};

struct server_line {
    struct server_line *next;
    struct net_connection *from;
    struct message message;
    bool is_under_way;
    struct push push;
};

static void on_tick(void *owner, uint64_t life, void *data);
static void on_slice(void *owner, uint64_t life, void *data);

/* --- replies --- */

static void answer(struct server *s, struct net_connection *c, struct message *m, int status)
{
    m->is_reply = true;
    m->status = status;
    if (m->type == MESSAGE_PULL || m->type == MESSAGE_BEAT)
        net_answer(&s->world->net, c, m);
    else
        logger_answer(&s->log, c, m);
}

static void keep(struct server_waiting **at, struct net_connection *c, const struct message *m)
{
    struct server_waiting *w = malloc(sizeof *w);

    assert(w);
    *w = (struct server_waiting){ .from = c, .message = *m };
    while (*at)
        at = &(*at)->next;
    *at = w;
}

static void drop_waiting(struct server_waiting **at, const struct net_connection *c)
{
    while (*at) {
        struct server_waiting *w = *at;

        if (c && w->from != c) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

static int find_worker(struct server *s, const struct net_connection *c, struct worker **ret)
{
    enter_shard();
    if (!c->has_joined)
        return PS_ENOJOIN;
    return roster_find(shard_roster(s->core), JOB, c->worker, c->incarnation,
                       world_ms(s->world), ret);
}

/* --- pulls --- */

/* Which keys a pull asks for: a part of the shard's, all tables. */
static uint32_t keys_of(const struct server *s, const struct message *m,
                        uint8_t ret[static PLAN_N_KEYS_MAX])
{
    const struct plan *p = &s->world->plan;
    uint32_t n = 0, one_in = p->dims[0] > 100 ? 16 : 2;

    for (uint32_t key = 0; key < p->n_keys; key++)
        if (plan_shard_of(p, key) == s->shard && hash_mix2(m->id, key) % one_in == 0)
            ret[n++] = (uint8_t)key;
    return n;
}

static void fill_pull(struct server *s, const struct message *m, const uint8_t *numbers,
                      uint32_t n, uint8_t *bytes)
{
    uint64_t keys[PLAN_N_KEYS_MAX];
    size_t n_bytes;

    for (uint32_t i = 0; i < n; i++)
        keys[i] = plan_key(numbers[i]);
    n_bytes = keys_encode(keys, n, bytes);
    s->pull->clock = m->clock;
    s->pull->unfinished = m->unfinished;
    s->pull->n_sections = s->world->plan.n_tables;
    for (uint32_t i = 0; i < s->pull->n_sections; i++)
        s->pull->sections[i] = (struct section){ .table_id = i,
                                                 .codec = CODEC_FP32,
                                                 .n_keys = n,
                                                 .keys = bytes,
                                                 .key_bytes = n_bytes };
}

/* Every push of every counted worker of clocks below clock - bound is in it. */
static void check_bound(struct server *s, const struct message *m)
{
    const struct world *w = s->world;
    const struct model *model = &s->book->model;
    uint64_t until = m->clock > w->plan.bound ? m->clock - w->plan.bound : 0;

    if (w->plan.mode == SPEC_MODE_ASYNC)
        return;
    if (model_min_clock(model) < until)
        world_fail(w, "shard %u: a pull of clock %llu is answered at min clock %llu", s->shard,
                   (unsigned long long)m->clock, (unsigned long long)model_min_clock(model));
    if (model->n_held && model->held[0].run == model->run &&
        model->held[0].push->clock < until)
        world_fail(w, "shard %u: a pull of clock %llu is answered before clock %llu is combined",
                   s->shard, (unsigned long long)m->clock,
                   (unsigned long long)model->held[0].push->clock);
    for (const struct sent_push *p = w->ledger.first; p; p = p->next) {
        const struct model_worker *who = &model->workers[p->rank];

        if (p->shard == s->shard && p->clock < until && who->state == WORKER_LIVE &&
            who->incarnation == p->incarnation && p->seq > who->last_seq)
            world_fail(w, "shard %u: a pull of clock %llu lacks push %llu of rank %u, clock %llu",
                       s->shard, (unsigned long long)m->clock, (unsigned long long)p->seq,
                       p->rank, (unsigned long long)p->clock);
    }
}

static void check_values(struct server *s, const uint8_t *numbers, uint32_t n,
                         const float *values)
{
    const struct plan *p = &s->world->plan;

    for (uint32_t table = 0; table < p->n_tables; table++)
        for (uint32_t i = 0; i < n; i++, values += p->dims[table])
            if (memcmp(values, s->book->model.values[table] + numbers[i] * (size_t)p->dims[table],
                       p->dims[table] * sizeof *values) != 0)
                world_fail(s->world, "shard %u: a pull reads %g of table %u, key %u; it is %g",
                           s->shard, (double)values[0], table, numbers[i],
                           (double)s->book->model
                               .values[table][numbers[i] * (size_t)p->dims[table]]);
}

static void read_rows(struct server *s, struct net_connection *c, struct worker *worker,
                      struct message *m, const uint8_t *numbers, uint32_t n)
{
    size_t value_bytes[PLAN_N_TABLES_MAX], n_bytes = 1;
    uint64_t version;
    struct err err = { 0 };
    uint8_t *dst;
    int status;

    enter_shard();
    status = shard_pull_plan(s->core, s->pull, SIZE_MAX, value_bytes, &err);
    for (uint32_t i = 0; !status && i < s->pull->n_sections; i++)
        n_bytes += value_bytes[i];
    dst = malloc(n_bytes);
    assert(dst);
    if (!status)
        status = shard_pull(s->core, worker, s->pull, dst, &m->min_clock, &version, &err);
    if (!status) {
        check_bound(s, m);
        check_values(s, numbers, n, (const float *)(const void *)dst);
    }
    free(dst);
    answer(s, c, m, status);
}

/* False: it has to wait. */
static bool try_pull(struct server *s, struct net_connection *c, struct message *m)
{
    uint8_t numbers[PLAN_N_KEYS_MAX], bytes[PLAN_N_KEYS_MAX * KEYS_BYTES_MAX];
    uint32_t n = keys_of(s, m, numbers);
    struct worker *worker;
    int status = find_worker(s, c, &worker);

    enter_shard();
    if (status) {
        answer(s, c, m, status);
        return true;
    }
    fill_pull(s, m, numbers, n, bytes);
    if (!shard_pull_ready(s->core, worker, s->pull))
        return false;
    read_rows(s, c, worker, m, numbers, n);
    return true;
}

static void retry_pulls(struct server *s)
{
    struct server_waiting **at = &s->parked;

    while (*at) {
        struct server_waiting *w = *at;

        if (!try_pull(s, w->from, &w->message)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

static void advance(struct server *s)
{
    enter_shard();
    if (shard_advance(s->core, world_ms(s->world)))
        retry_pulls(s);
}

static void on_pull(struct server *s, struct net_connection *c, struct message *m)
{
    struct worker *worker;

    enter_shard();
    if (find_worker(s, c, &worker) == 0 && roster_reach(worker, m->clock - m->unfinished)) {
        (void)shard_advance(s->core, world_ms(s->world));
        retry_pulls(s);
    }
    if (!try_pull(s, c, m))
        keep(&s->parked, c, m);
}

/* --- pushes --- */

static void tell_pushed(struct server *s, struct net_connection *c, struct message *m,
                        int status, const struct shard_push_result *result)
{
    m->min_clock = result->min_clock;
    answer(s, c, m, status ? status : result->status);
    if (m->push->tick)
        retry_pulls(s);
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
    int status = find_worker(s, c, &worker);

    enter_shard();
    if (status == PS_EFENCED)
        shard_push_fenced(s->core);
    if (!s->asking)
        s->asking = calloc(1, sizeof *s->asking);
    assert(s->asking);
    if (!status) {
        ledger_fill(m->push, &s->world->plan, &s->asking->push);
        status = shard_push_begin(s->core, worker, &s->asking->push, world_ms(s->world), &result,
                                  &state);
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
        *ret_status = find_worker(s, l->from, &worker);
        if (!*ret_status)
            *ret_status = shard_push_begin(s->core, worker, &l->push, world_ms(s->world), ret,
                                           &state);
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
        m->last = worker->last_seq;
        m->clock = worker->clock;
        m->min_clock = job_min_clock(worker->job);
        retry_pulls(s);
    }
    answer(s, c, m, status);
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
    answer(s, c, m, status);
}

static void on_leave(struct server *s, struct net_connection *c, struct message *m)
{
    struct worker *worker;
    int status = find_worker(s, c, &worker);

    enter_shard();
    if (!status) {
        shard_settle(s->core);
        roster_leave(shard_roster(s->core), worker);
        c->has_joined = false;
    }
    answer(s, c, m, status);
    if (!status) {
        (void)shard_advance(s->core, world_ms(s->world));
        retry_pulls(s);
    }
}

void server_request(struct server *s, struct net_connection *c, const struct message *asked)
{
    struct message m = *asked;
    struct worker *worker;

    if (is_in_line(s, c)) {
        keep(&s->held, c, asked);
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
        on_pull(s, c, &m);
        break;
    case MESSAGE_BEAT:
        answer(s, c, &m, find_worker(s, c, &worker));
        break;
    case MESSAGE_LEAVE:
        on_leave(s, c, &m);
        break;
    }
}

void server_closed(struct server *s, struct net_connection *c)
{
    struct server_line **at = &s->line;

    drop_waiting(&s->parked, c);
    drop_waiting(&s->held, c);
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
        (void)!find_worker(s, w->from, &worker); /* who waits is there */
    for (const struct server_line *l = s->line; l; l = l->next)
        if (!l->is_under_way)
            (void)!find_worker(s, l->from, &worker);
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
                 const struct log_identity *identity, const struct log_end *end, struct err *err)
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
    drop_waiting(&s->parked, NULL);
    drop_waiting(&s->held, NULL);
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
