#include "tests/sim/pulls.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/keys.h"
#include "tests/sim/desk.h"

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
        s->pull->sections[i] = (struct section){
            .table_id = i, .codec = CODEC_FP32, .n_keys = n, .keys = bytes, .key_bytes = n_bytes
        };
}

/* Every push of every counted worker of clocks below clock - bound is in it. */
static void check_bound(struct server *s, const struct message *m)
{
    const struct world *w = s->world;
    const struct model *model = &s->book->model;
    uint64_t until = m->clock > w->plan.bound ? m->clock - w->plan.bound : 0;
    uint64_t met = plan_met(&w->plan, m->clock);

    if (w->plan.mode == SPEC_MODE_ASYNC)
        return;
    until = met > until ? met : until;
    if (model_min_clock(model) < until)
        world_fail(w, "shard %u: a pull of clock %llu is answered at min clock %llu", s->shard,
                   (unsigned long long)m->clock, (unsigned long long)model_min_clock(model));
    if (model->n_held && model->held[0].run == model->run && model->held[0].push->clock < until)
        world_fail(w,
                   "shard %u: a pull of clock %llu is answered before clock %llu is combined",
                   s->shard, (unsigned long long)m->clock,
                   (unsigned long long)model->held[0].push->clock);
    for (const struct sent_push *p = w->ledger.first; p; p = p->next) {
        const struct model_worker *who = &model->workers[p->rank];

        if (p->shard == s->shard && p->clock < until && who->state == WORKER_LIVE &&
            who->incarnation == p->incarnation && p->seq > who->last_seq)
            world_fail(w,
                       "shard %u: a pull of clock %llu lacks push %llu of rank %u, clock %llu",
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
            if (memcmp(values,
                       s->book->model.values[table] + numbers[i] * (size_t)p->widths[table],
                       p->dims[table] * sizeof *values) != 0)
                world_fail(s->world, "shard %u: a pull reads %g of table %u, key %u; it is %g",
                           s->shard, (double)values[0], table, numbers[i],
                           (double)s->book->model
                               .values[table][numbers[i] * (size_t)p->widths[table]]);
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
    desk_answer(s, c, m, status);
}

/* False: it has to wait. */
static bool try_pull(struct server *s, struct net_connection *c, struct message *m)
{
    uint8_t numbers[PLAN_N_KEYS_MAX], bytes[PLAN_N_KEYS_MAX * KEYS_BYTES_MAX];
    uint32_t n = keys_of(s, m, numbers);
    struct worker *worker;
    int status = desk_find_worker(s, c, &worker);

    enter_shard();
    if (status) {
        desk_answer(s, c, m, status);
        return true;
    }
    fill_pull(s, m, numbers, n, bytes);
    if (!shard_pull_ready(s->core, worker, s->pull))
        return false;
    read_rows(s, c, worker, m, numbers, n);
    return true;
}

void pulls_retry(struct server *s)
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

void pulls_ask(struct server *s, struct net_connection *c, struct message *m)
{
    struct worker *worker;

    enter_shard();
    if (desk_find_worker(s, c, &worker) == 0 && c->join_number == worker->join_number &&
        roster_reach(worker, m->clock - m->unfinished)) {
        (void)shard_advance(s->core, world_ms(s->world));
        pulls_retry(s);
    }
    if (!try_pull(s, c, m))
        desk_keep(&s->parked, c, m);
}
