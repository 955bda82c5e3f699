#include "tests/sim/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/optim.h"

/* --- history --- */

void history_deinit(struct history *h)
{
    free(h->facts);
    *h = (struct history){ 0 };
}

void history_add(struct history *h, const struct fact *fact)
{
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 128;
        h->facts = realloc(h->facts, h->cap * sizeof *h->facts);
        assert(h->facts);
    }
    h->facts[h->n++] = *fact;
}

static uint64_t bits_of(const struct shard_event *event)
{
    uint64_t bits = 0;

    for (uint32_t i = 0; i < event->rows.n_keys; i++)
        bits |= UINT64_C(1) << (event->rows.keys[i] - 1) / 3;
    return bits;
}

static void fill_worker(struct fact *fact, const struct shard_event_worker *worker)
{
    fact->rank = worker->rank;
    fact->incarnation = worker->incarnation;
}

struct fact fact_of(const struct shard_event *event, const struct push_history *push_history,
                    uint32_t shard)
{
    struct fact fact = { .type = event->type, .version = event->version };

    switch (event->type) {
    case SHARD_EVENT_PUSH:
        fill_worker(&fact, &event->push.worker);
        fact.status = event->push.status;
        fact.push = push_history_find(push_history, shard, fact.rank, fact.incarnation,
                                      event->push.push->seq);
        break;
    case SHARD_EVENT_TABLE:
        fact.table = event->table.id;
        break;
    case SHARD_EVENT_DROP: /* no schedule has an operator, */
    case SHARD_EVENT_SPEC:
    case SHARD_EVENT_LEARNED: /* or a trainer that reports */
        break;
    case SHARD_EVENT_JOIN:
        fact.rank = event->join.join->rank;
        fact.incarnation = event->join.join->incarnation;
        fact.clock = event->join.join->clock;
        fact.last_acked = event->join.join->last_acked;
        break;
    case SHARD_EVENT_GONE:
        fill_worker(&fact, &event->gone.worker);
        fact.state = (enum worker_state)event->gone.state;
        break;
    case SHARD_EVENT_ADVANCE:
        fill_worker(&fact, &event->advance.worker);
        fact.clock = event->advance.clock;
        break;
    case SHARD_EVENT_COMBINE:
        fact.clock = event->combine.clock;
        fact.run = event->combine.run;
        break;
    case SHARD_EVENT_ROWS:
        fact.table = event->rows.table_id;
        fact.op = event->rows.op;
        fact.keys = bits_of(event);
        break;
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return fact;
}

/* --- rows --- */

void model_init(struct model *m, const struct plan *plan)
{
    *m = (struct model){ .plan = plan };
    for (uint32_t i = 0; i < plan->n_tables; i++) {
        m->values[i] = calloc((size_t)plan->n_keys * plan->widths[i], sizeof(float));
        assert(m->values[i]);
    }
}

void model_deinit(struct model *m)
{
    for (uint32_t i = 0; i < PLAN_N_TABLES_MAX; i++)
        free(m->values[i]);
    *m = (struct model){ 0 };
}

static float *row_of(struct model *m, uint32_t table, uint32_t key);

void model_copy(const struct model *m, struct model *ret)
{
    for (uint32_t i = 0; i < m->plan->n_tables; i++)
        memcpy(ret->values[i], m->values[i],
               (size_t)m->plan->n_keys * m->plan->widths[i] * sizeof(float));
    memcpy(ret->rows, m->rows, sizeof ret->rows);
    memcpy(ret->n_pushes, m->n_pushes, sizeof ret->n_pushes);
    ret->n_tables = m->n_tables;
    ret->version = m->version;
}

void model_reshard(struct model *m, const struct model *from, uint32_t shard)
{
    for (uint32_t i = 0; i < from->n_tables; i++) {
        size_t width = m->plan->widths[i];

        for (uint32_t key = 0; key < m->plan->n_keys; key++) {
            if (!from->rows[i][key].is_there || plan_shard_of(m->plan, key) != shard)
                continue;
            m->rows[i][key] = from->rows[i][key];
            memcpy(row_of(m, i, key), from->values[i] + key * width, width * sizeof(float));
        }
        if (from->n_pushes[i] > m->n_pushes[i])
            m->n_pushes[i] = from->n_pushes[i];
    }
    m->n_tables = from->n_tables > m->n_tables ? from->n_tables : m->n_tables;
    m->version = from->version > m->version ? from->version : m->version;
}

static float *row_of(struct model *m, uint32_t table, uint32_t key)
{
    return m->values[table] + (size_t)key * m->plan->widths[table];
}

static void remove_row(struct model *m, uint32_t table, uint32_t key)
{
    m->rows[table][key].is_there = false;
    memset(row_of(m, table, key), 0, m->plan->widths[table] * sizeof(float));
}

static void step(struct model *m, uint32_t table, uint32_t key, const float *gradient)
{
    const struct table_spec *spec = &m->plan->specs[table];
    struct model_row *row = &m->rows[table][key];
    float *values = row_of(m, table, key);

    if (!row->is_there) {
        if (m->left[table] >> key & 1)
            return;
        *row = (struct model_row){ .is_there = true, .made = m->version };
        optimizer_begin(spec, 0, values);
    }
    row->version = m->version;
    optimizer_step(spec, m->n_pushes[table], gradient, values);
}

static void step_section(struct model *m, const struct sent_push *push, uint32_t table)
{
    const struct sent_section *s = &push->sections[table];

    for (uint32_t i = 0; i < s->n_keys; i++)
        step(m, table, s->keys[i], s->values + (size_t)i * m->plan->dims[table]);
}

void model_show(const struct model *m, uint32_t table, uint32_t key, uint32_t n, float *ret)
{
    optimizer_show(&m->plan->specs[table], m->n_pushes[table],
                   m->values[table] + (size_t)key * m->plan->widths[table], n, ret);
}

bool model_is_row(const struct model *m, uint32_t table, uint32_t key, const uint8_t *bytes,
                  bool state)
{
    const uint32_t width = m->plan->widths[table], dim = m->plan->dims[table];
    const float *values = m->values[table] + (size_t)key * width;
    float shown[PLAN_DIM_MAX]; /* wide ones do not decay */

    if (!m->rows[table][key].is_there)
        return false;
    if (state || m->plan->specs[table].row_decay <= 0)
        return memcmp(bytes, values, (state ? width : dim) * sizeof(float)) == 0;
    model_show(m, table, key, dim, shown);
    return memcmp(bytes, shown, dim * sizeof(float)) == 0;
}

/* The row becomes what the push says; without a state that begins anew. */
static void assign(struct model *m, const struct sent_push *push, uint32_t table, uint32_t key,
                   const float *from)
{
    const uint32_t n =
        push->op == SECTION_ASSIGN_STATE ? m->plan->widths[table] : m->plan->dims[table];
    struct model_row *row = &m->rows[table][key];
    float *values = row_of(m, table, key);

    if (!row->is_there) {
        if (m->left[table] >> key & 1)
            return;
        *row = (struct model_row){ .is_there = true, .made = m->version };
    }
    row->version = m->version;
    optimizer_begin(&m->plan->specs[table], m->n_pushes[table], values);
    memcpy(values, from, n * sizeof *values);
}

static void assign_section(struct model *m, const struct sent_push *push, uint32_t table)
{
    const struct sent_section *s = &push->sections[table];
    const uint32_t n =
        push->op == SECTION_ASSIGN_STATE ? m->plan->widths[table] : m->plan->dims[table];
    const uint64_t steps = plan_steps(m->plan, push->rank, push->clock);

    if (push->op == SECTION_ASSIGN_STATE && steps > m->n_pushes[table])
        m->n_pushes[table] = steps;
    for (uint32_t i = 0; i < s->n_keys; i++)
        assign(m, push, table, s->keys[i], s->values + (size_t)i * n);
}

/* What was recorded for the version that begins now. */
static void begin_version(struct model *m)
{
    m->version++;
    for (uint32_t table = 0; table < m->n_tables; table++) {
        for (uint32_t key = 0; key < m->plan->n_keys; key++)
            if (m->gone[table] >> key & 1)
                remove_row(m, table, key);
        m->gone[table] = 0;
    }
}

static void end_version(struct model *m)
{
    memset(m->left, 0, sizeof m->left);
}

static const char *apply_rows(struct model *m, const struct fact *fact)
{
    uint32_t table = fact->table;

    if (table >= m->n_tables || fact->version > m->version + 1)
        return "rows of no table, or of a version to come";
    if (fact->op == SHARD_ROWS_TOUCHES)
        return NULL;
    if (fact->version > m->version) {
        *(fact->op == SHARD_ROWS_LEFT ? &m->left[table] : &m->gone[table]) |= fact->keys;
        return NULL;
    }
    for (uint32_t key = 0; key < m->plan->n_keys; key++)
        if (fact->keys >> key & 1 && m->rows[table][key].version <= fact->version &&
            (fact->op == SHARD_ROWS_GONE || m->rows[table][key].made == fact->version))
            remove_row(m, table, key);
    return NULL;
}

/* --- who takes part --- */

/* The clock that all who count have reached but for n_backups of them: the greatest such; who are no more, the first. */
uint64_t model_min_clock(const struct model *m)
{
    const uint32_t n_workers = m->plan->n_workers;
    uint64_t most = 0;
    uint32_t n_counted = 0;

    for (uint32_t i = 0; i < n_workers; i++) {
        most = m->workers[i].clock > most ? m->workers[i].clock : most;
        n_counted += model_counts(&m->workers[i]);
    }
    for (uint64_t clock = most; n_counted > m->plan->n_backups; clock--) {
        uint32_t n_behind = 0;

        for (uint32_t i = 0; i < n_workers; i++)
            n_behind += model_counts(&m->workers[i]) && m->workers[i].clock < clock;
        if (n_behind <= m->plan->n_backups)
            return clock;
    }
    return most;
}

static bool is_alive(const struct model *m)
{
    for (uint32_t i = 0; m->run && i < m->plan->n_workers; i++)
        if (model_counts(&m->workers[i]))
            return true;
    return false;
}

static const char *apply_join(struct model *m, const struct fact *fact)
{
    struct model_worker *w = &m->workers[fact->rank];
    uint64_t min_clock;

    /* It had left, and asks again on a connection that was cut before: what it has done stays. */
    if (w->state == WORKER_LEFT && w->incarnation == fact->incarnation &&
        w->last_seq > fact->last_acked) {
        min_clock = model_min_clock(m);
        w->state = WORKER_LIVE;
        w->clock = w->clock > min_clock ? w->clock : min_clock;
        return NULL;
    }
    if (!is_alive(m) && (!m->run || !fact->clock)) {
        memset(m->workers, 0, sizeof m->workers); /* EXPECTED */
        m->run++;
    }
    min_clock = model_min_clock(m);
    if (w->state == WORKER_LIVE && w->incarnation == fact->incarnation) {
        if (fact->last_acked > w->last_seq && m->plan->durability == WAL_FSYNC)
            return "a push that was acknowledged is lost: its worker comes back and knows of "
                   "it";
        if (fact->last_acked <= w->last_seq)
            return NULL;
        w->last_seq = fact->last_acked;
        if (fact->clock > w->clock)
            w->clock = fact->clock;
        return NULL;
    }
    if (fact->last_acked && m->plan->durability == WAL_FSYNC)
        return "a worker that comes back is not known, and has acknowledged pushes";
    *w = (struct model_worker){ .state = WORKER_LIVE,
                                .incarnation = fact->incarnation,
                                .clock = fact->clock > min_clock ? fact->clock : min_clock,
                                .last_seq = fact->last_acked };
    w->joined_clock = w->clock;
    return NULL;
}

/* What came of a step that is over goes, too. */
static void drop_step(struct model *m, const struct sent_push *push)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_held; i++) {
        const struct sent_push *p = m->held[i].push;

        if (m->held[i].run != m->run || p->rank != push->rank ||
            p->incarnation != push->incarnation || p->clock != push->clock)
            m->held[n++] = m->held[i];
    }
    m->n_held = n;
}

static void finish_held(struct model *m, const struct sent_push *push)
{
    for (uint32_t i = 0; i < m->n_held; i++) {
        const struct sent_push *p = m->held[i].push;

        if (m->held[i].run == m->run && p->rank == push->rank &&
            p->incarnation == push->incarnation && p->clock <= push->clock)
            m->held[i].is_finished = true;
    }
}

static void tick(struct model *m, const struct sent_push *push)
{
    struct model_worker *w = &m->workers[push->rank];

    if (!push->tick)
        return;
    if (push->clock + 1 > w->clock)
        w->clock = push->clock + 1;
    finish_held(m, push);
}

/* --- pushes --- */

static bool is_before(const struct sent_push *a, const struct sent_push *b)
{
    if (a->clock != b->clock)
        return a->clock < b->clock;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->incarnation != b->incarnation)
        return a->incarnation < b->incarnation;
    return a->seq < b->seq;
}

static const char *hold(struct model *m, const struct sent_push *push)
{
    uint32_t at = m->n_held;

    if (m->n_held == MODEL_HELD_MAX)
        return "more pushes wait than were ever made";
    while (at && m->held[at - 1].run == m->run && is_before(push, m->held[at - 1].push)) {
        m->held[at] = m->held[at - 1];
        at--;
    }
    m->held[at] = (struct model_held){ .push = push, .run = m->run };
    m->n_held++;
    return NULL;
}

static const char *apply_now(struct model *m, const struct sent_push *push)
{
    begin_version(m);
    for (uint32_t table = 0; table < m->n_tables; table++) {
        m->n_pushes[table]++;
        step_section(m, push, table);
    }
    end_version(m);
    return NULL;
}

/* An assignment waits for no clock, and is no step. */
static void assign_now(struct model *m, const struct sent_push *push)
{
    begin_version(m);
    for (uint32_t table = 0; table < m->n_tables; table++)
        assign_section(m, push, table);
    end_version(m);
}

/* Bounded staleness: before all that count have reached a sync point, nothing beyond it changes a row. */
static bool is_early(const struct model *m, const struct sent_push *push)
{
    uint64_t sync_point = plan_sync_point(m->plan, push->clock);

    for (uint32_t i = 0; i < m->plan->n_workers; i++)
        if (model_counts(&m->workers[i]) && m->workers[i].clock < sync_point)
            return true;
    return false;
}

static const char *apply_push(struct model *m, const struct fact *fact)
{
    const struct sent_push *push = fact->push;
    struct model_worker *w = &m->workers[fact->rank];
    const char *wrong = NULL;
    bool is_late, is_over;

    if (!push)
        return "a push that nobody has made";
    if (w->state != WORKER_LIVE || w->incarnation != push->incarnation)
        return "a push of a worker that does not take part";
    if (push->seq <= w->last_seq)
        return "a push is applied twice";
    if (push->seq != w->last_seq + 1)
        return "a push is applied before the one in front of it";
    if (is_early(m, push))
        return "a push is applied before all have reached the sync point in front of it";
    w->last_seq = push->seq;
    /* What nobody had synced is lost, and the others have gone on meanwhile: only rows can still be set. */
    is_late = m->plan->mode == TABLE_SPEC_MODE_BSP && push->clock < w->clock &&
              m->plan->durability != WAL_FSYNC;
    if (fact->status && is_late)
        return NULL;
    if (fact->status)
        return "a push that is right was refused";
    m->n_applied++;
    is_over = m->plan->n_backups && push->clock < model_min_clock(m) &&
              (push->clock >= w->clock || push->op == SECTION_GRADIENT);
    /* In lock step each push takes part in its clock, also one that has set its rows already. */
    if (push->op != SECTION_GRADIENT)
        assign_now(m, push);
    if (is_over) {
        if (push->clock >= w->clock) /* else what is held of it was in time */
            drop_step(m, push);
    } else if (m->plan->mode == TABLE_SPEC_MODE_BSP && !is_late) {
        wrong = hold(m, push);
    } else if (push->op == SECTION_GRADIENT) {
        wrong = apply_now(m, push);
    }
    tick(m, push);
    return wrong ? wrong : fact->version != m->version ? "a push has another version" : NULL;
}

/* --- lock step --- */

/* A clock that is to be combined: n pushes from `first` on. */
struct complete {
    struct model_held *first;
    uint32_t n;
};

static bool is_finished(const struct model *m, const struct model_held *held)
{
    const struct model_worker *w = &m->workers[held->push->rank];

    return held->is_finished ||
           (held->run == m->run && w->incarnation == held->push->incarnation &&
            w->clock > held->push->clock);
}

/* A newer incarnation has finished the clock, too. */
static bool is_replaced(const struct model *m, const struct complete *c, uint32_t i)
{
    for (uint32_t k = i + 1; k < c->n; k++)
        if (c->first[k].push->rank == c->first[i].push->rank &&
            c->first[k].push->incarnation != c->first[i].push->incarnation &&
            is_finished(m, &c->first[k]))
            return true;
    return false;
}

static struct complete find_clock(struct model *m, uint64_t run, uint64_t clock)
{
    struct complete c = { .first = m->held };

    while (c.first < m->held + m->n_held && c.first->run != run)
        c.first++;
    while (c.first + c.n < m->held + m->n_held && c.first[c.n].run == run &&
           c.first[c.n].push->clock == clock)
        c.n++;
    return c;
}

static void drop_held(struct model *m, struct complete *c, uint32_t i, uint32_t n)
{
    struct model_held *from = c->first + i + n;

    memmove(c->first + i, from, (size_t)(m->held + m->n_held - from) * sizeof *from);
    m->n_held -= n;
    c->n -= n;
}

/* Of a worker whose last pushes are lost there may be an assignment alone, which has changed its rows before. */
static bool has_gradients(const struct complete *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->first[i].push->op == SECTION_GRADIENT)
            return true;
    return false;
}

static float weight_of(const struct model *m, const struct complete *c, uint32_t rank)
{
    uint32_t total = 0;

    for (uint32_t r = 0; r < m->plan->n_workers; r++) {
        bool takes_part = false;

        for (uint32_t i = 0; i < c->n; i++)
            takes_part = takes_part || c->first[i].push->rank == r;
        total += takes_part ? m->plan->n_samples[r] : 0;
    }
    return (float)((double)m->plan->n_samples[rank] / (double)total);
}

/* As bsp.c's combine(): the weighted sum first, then one step. */
static void combine_key(struct model *m, const struct complete *c, uint32_t table, uint32_t key,
                        float *sum)
{
    uint32_t dim = m->plan->dims[table];
    bool any = false;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct sent_section *s = &c->first[i].push->sections[table];
        uint32_t at = 0;
        float weight;

        while (at < s->n_keys && s->keys[at] != key)
            at++;
        if (at == s->n_keys || c->first[i].push->op != SECTION_GRADIENT)
            continue;
        weight = weight_of(m, c, c->first[i].push->rank);
        for (uint32_t k = 0; k < dim; k++) {
            float part = weight * s->values[(size_t)at * dim + k];

            sum[k] = any ? sum[k] + part : part;
        }
        any = true;
    }
    if (any)
        step(m, table, key, sum);
}

static void combine(struct model *m, const struct complete *c)
{
    float *sum = malloc(TABLE_SPEC_DIM_MAX * sizeof *sum);

    assert(sum);
    begin_version(m);
    for (uint32_t table = 0; table < m->n_tables; table++) {
        m->n_pushes[table]++;
        for (uint32_t key = 0; key < m->plan->n_keys; key++)
            combine_key(m, c, table, key, sum);
    }
    end_version(m);
    free(sum);
}

static void note_combined(struct model *m, const struct fact *fact, const struct complete *c)
{
    struct model_combined *noted = &m->combined[fact->clock];

    if (fact->clock >= PLAN_N_STEPS_MAX)
        return;
    *noted = (struct model_combined){ .run = fact->run };
    for (uint32_t i = 0; i < c->n; i++)
        noted->incarnations[c->first[i].push->rank] = c->first[i].push->incarnation;
}

/* None is left that counts, or none of those that are waited for is behind. */
static bool has_all_ticked(const struct model *m, uint64_t clock)
{
    return !is_alive(m) || model_min_clock(m) > clock;
}

static const char *apply_combine(struct model *m, const struct fact *fact)
{
    struct complete c = find_clock(m, fact->run, fact->clock);

    if (!c.n)
        return "a clock is combined that nobody has pushed for, or not the first one";
    if (fact->run == m->run && !has_all_ticked(m, fact->clock))
        return "a clock is combined before all have finished it";
    for (uint32_t i = c.n; i-- > 0;)
        if (!is_finished(m, &c.first[i]) || is_replaced(m, &c, i))
            drop_held(m, &c, i, 1);
    note_combined(m, fact, &c);
    if (has_gradients(&c))
        combine(m, &c);
    drop_held(m, &c, 0, c.n);
    return fact->version != m->version ? "a combined clock has another version" : NULL;
}

void model_release(struct model *m)
{
    while (m->n_held) {
        const struct fact fact = { .type = SHARD_EVENT_COMBINE,
                                   .clock = m->held[0].push->clock,
                                   .run = m->held[0].run };

        if (fact.run == m->run && !has_all_ticked(m, fact.clock))
            return;
        (void)apply_combine(m, &fact); /* of which version it is nobody says */
    }
}

const char *model_apply(struct model *m, const struct fact *fact)
{
    struct model_worker *w = &m->workers[fact->rank];

    switch (fact->type) {
    case SHARD_EVENT_TABLE:
        return fact->table == m->n_tables++ ? NULL : "a table has another number";
    case SHARD_EVENT_JOIN:
        return apply_join(m, fact);
    case SHARD_EVENT_PUSH:
        return apply_push(m, fact);
    case SHARD_EVENT_GONE:
        w->state = fact->state;
        return NULL;
    case SHARD_EVENT_ADVANCE:
        if (fact->clock <= w->clock)
            return "a clock goes back";
        w->clock = fact->clock;
        return NULL;
    case SHARD_EVENT_COMBINE:
        return apply_combine(m, fact);
    case SHARD_EVENT_ROWS:
        return apply_rows(m, fact);
    case SHARD_EVENT_DROP:
    case SHARD_EVENT_SPEC:
    case SHARD_EVENT_LEARNED:
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return "an event of no type";
}
