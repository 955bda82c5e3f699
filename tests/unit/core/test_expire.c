/* Which rows come and go: by the rules one by one, and all of them against a trivial reference. */
#include "fixture.h"
#include "server/core/expire.h"
#include "server/core/shard_internal.h"

#define N_KEYS 300u

/* One worker that pushes ones to a table without an optimizer's state. */
struct stage {
    struct shard *s;
    struct worker *w;
    uint32_t table;
    uint64_t now_ms;
};

static struct stage stage_new(struct table_spec_limits limits)
{
    struct table_spec spec = sparse_spec("emb", 1, TABLE_SPEC_SGD);
    struct stage g = { .s = make_shard(0, 1, 0) };

    spec.limits = limits;
    g.table = make_table(g.s, &spec);
    g.w = join(g.s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    return g;
}

static void push_keys(struct stage *g, uint64_t clock, const uint64_t *keys, uint32_t n)
{
    static float ones[N_KEYS];
    struct push *push = next_push(g->w, clock);

    for (uint32_t i = 0; i < N_KEYS; i++)
        ones[i] = 1;
    add_gradient(push, g->table, 1, keys, n, ones);
    must_push(g->s, g->w, push);
}

static void push_key(struct stage *g, uint64_t clock, uint64_t key)
{
    push_keys(g, clock, &key, 1);
}

static void advance(struct stage *g, uint64_t ms)
{
    enter_shard();
    g->now_ms += ms;
    g->w->last_seen_ms = g->now_ms;
    (void)shard_advance(g->s, g->now_ms);
}

static bool is_there(struct stage *g, uint64_t key)
{
    return find_row(g->s, g->table, key) != NULL;
}

static const struct shard_table *table_of(struct stage *g)
{
    enter_shard();
    return shard_table(g->s, g->table);
}

static void stage_free(struct stage *g)
{
    enter_shard();
    shard_free(g->s);
}

static void a_key_gets_a_row_at_its_nth_push_within_the_window(void **state)
{
    struct stage g =
        stage_new((struct table_spec_limits){ .admit_touches = 3, .admit_clocks = 100 });

    (void)state;
    push_key(&g, 0, 7);
    push_key(&g, 1, 7);
    assert_false(is_there(&g, 7));
    assert_int_equal(table_of(&g)->rows_unadmitted, 2);
    push_key(&g, 2, 7);
    assert_true(is_there(&g, 7));
    push_key(&g, 3, 7);
    assert_int_equal(table_of(&g)->rows_unadmitted, 2);
    /* The gradients of before are gone: one step for each of two pushes. */
    push_key(&g, 4, 8);
    push_key(&g, 40, 8);
    push_key(&g, 150, 1); /* on to the half-window behind the next */
    push_key(&g, 151, 8);
    assert_false(is_there(&g, 8));
    push_key(&g, 152, 8);
    push_key(&g, 153, 8);
    assert_true(is_there(&g, 8));
    assert_true(table_of(&g)->count_min_bytes > 0);
    stage_free(&g);
}

static void a_row_that_is_set_needs_no_admission(void **state)
{
    struct stage g =
        stage_new((struct table_spec_limits){ .admit_touches = 9, .admit_clocks = 100 });
    struct push *push = next_push(g.w, 0);
    const uint64_t key = 5;
    const float weight = 3;

    (void)state;
    add_assign(push, g.table, 1, &key, 1, &weight);
    must_push(g.s, g.w, push);
    assert_true(is_there(&g, 5));
    assert_int_equal(table_of(&g)->rows_unadmitted, 0);
    stage_free(&g);
}

static void a_row_goes_when_no_push_came_for_idle_clocks(void **state)
{
    struct stage g = stage_new((struct table_spec_limits){ .idle_clocks = 64 });

    (void)state;
    push_key(&g, 0, 1);
    for (uint64_t clock = 1; clock < 64; clock++)
        push_key(&g, clock, 2);
    advance(&g, 1);
    assert_true(is_there(&g, 1));
    push_key(&g, 66, 2); /* within 1/32 */
    advance(&g, 1);
    assert_false(is_there(&g, 1));
    assert_true(is_there(&g, 2));
    assert_int_equal(table_of(&g)->rows_idle, 1);
    push_key(&g, 67, 1); /* it starts anew */
    assert_true(is_there(&g, 1));
    stage_free(&g);
}

static void a_new_run_that_begins_at_clock_0_moves_the_clock_on(void **state)
{
    struct stage g = stage_new((struct table_spec_limits){ .idle_clocks = 64 });
    struct shard_entry *entry = g.s->tables[g.table];

    (void)state;
    push_key(&g, 0, 1);
    push_key(&g, 1000, 2);
    membership_leave(shard_membership(g.s), g.w);
    advance(&g, 1);
    g.w = join_at(g.s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1, 2, g.now_ms);
    assert_int_equal(entry->turnover.clock, 1000);
    for (uint64_t clock = 0; clock <= 70; clock++)
        push_key(&g, clock, 3);
    assert_int_equal(entry->turnover.clock, 1070);
    advance(&g, 1);
    assert_false(is_there(&g, 2));
    assert_true(is_there(&g, 3));
    stage_free(&g);
}

static void a_row_goes_when_its_time_to_live_is_over(void **state)
{
    struct stage g = stage_new((struct table_spec_limits){ .ttl_s = 10 });

    (void)state;
    push_key(&g, 0, 1);
    advance(&g, 0);
    advance(&g, 5000);
    push_key(&g, 0, 2);
    advance(&g, 0);
    advance(&g, 4999);
    assert_true(is_there(&g, 1));
    advance(&g, 320);
    assert_false(is_there(&g, 1));
    assert_true(is_there(&g, 2));
    advance(&g, 5000);
    assert_false(is_there(&g, 2));
    assert_int_equal(table_of(&g)->rows_expired, 2);
    assert_int_equal(table_n_rows(table_of(&g)->rows), 0);
    stage_free(&g);
}

static void a_row_goes_when_it_had_too_few_pushes(void **state)
{
    struct stage g =
        stage_new((struct table_spec_limits){ .rare_touches = 3, .rare_clocks = 100 });

    (void)state;
    push_key(&g, 0, 1);
    push_key(&g, 0, 2);
    advance(&g, 1); /* the first visit: they count from here */
    for (uint64_t clock = 1; clock <= 99; clock++) {
        if (clock % 33 == 0)
            push_key(&g, clock, 1);
        if (clock % 49 == 0)
            push_key(&g, clock, 2);
        advance(&g, 1);
    }
    assert_true(is_there(&g, 1) && is_there(&g, 2));
    push_key(&g, 100, 3);
    advance(&g, 1);
    assert_true(is_there(&g, 1));  /* 3 pushes */
    assert_false(is_there(&g, 2)); /* 2 */
    assert_true(is_there(&g, 3));  /* new: a whole window is before it */
    assert_int_equal(table_of(&g)->rows_rare, 1);
    stage_free(&g);
}

static void after_a_restart_nothing_goes_before_a_whole_span(void **state)
{
    struct stage g = stage_new(
        (struct table_spec_limits){ .idle_clocks = 50, .rare_touches = 2, .rare_clocks = 50 });
    const float weight = 1;

    (void)state;
    for (uint64_t key = 10; key < 20; key++)
        assert_int_equal(restore_row(g.s, g.table, key, row_stamp(1 + key, 0, 0), &weight), 0);
    restore_counts(g.s, g.table, 5, 1000);
    for (uint64_t clock = 700; clock < 750; clock++) { /* the job goes on where it was */
        push_key(&g, clock, 1);
        advance(&g, 1);
        assert_int_equal(table_n_rows(table_of(&g)->rows), 11);
    }
    push_key(&g, 752, 1);
    advance(&g, 1);
    assert_int_equal(table_n_rows(table_of(&g)->rows), 1);
    stage_free(&g);
}

static void a_slice_is_bounded_and_a_pass_goes_on_in_the_next(void **state)
{
    enum { N = 50000 };
    struct stage g = stage_new((struct table_spec_limits){ .ttl_s = 1 });
    const float weight = 1;

    (void)state;
    for (uint64_t key = 0; key < N; key++)
        assert_int_equal(restore_row(g.s, g.table, key, row_stamp(1, 0, 0), &weight), 0);
    restore_counts(g.s, g.table, 1, 1);
    advance(&g, 1);
    advance(&g, 1000);
    for (uint64_t n = 1; n * EXPIRE_ROWS < N; n++) {
        assert_int_equal(table_n_rows(table_of(&g)->rows), N - n * EXPIRE_ROWS);
        advance(&g, 1);
    }
    assert_int_equal(table_n_rows(table_of(&g)->rows), 0);
    stage_free(&g);
}

/* --- a reference that remembers everything of every key --- */

struct reference_key {
    bool there, visited;
    uint64_t clock, ms;        /* of the last push */
    uint32_t touches, seen[2]; /* pushes without a row: in this half-window, in the last */
};

struct reference {
    struct table_spec_limits limits;
    struct reference_key keys[N_KEYS];
    uint64_t clock, half, rare_from, n_rows, n_unadmitted, n_gone;
};

static void reference_push(struct reference *t, uint32_t i, uint64_t ms)
{
    struct reference_key *k = &t->keys[i];

    if (!k->there && t->limits.admit_touches > 1 &&
        ++k->seen[0] + k->seen[1] < t->limits.admit_touches) {
        t->n_unadmitted++;
        return;
    }
    if (!k->there) {
        k->there = true;
        k->visited = false;
        k->touches = 0;
        t->n_rows++;
    }
    k->touches++;
    k->clock = t->clock;
    k->ms = ms;
}

/* The half-windows of clocks, if any of these pushes looks at the sketch. */
static void reference_turn(struct reference *t, const uint32_t *keys, uint32_t n)
{
    uint64_t half;
    bool any = false;

    if (t->limits.admit_touches < 2)
        return;
    half = t->clock / ((t->limits.admit_clocks + 1) / 2);
    for (uint32_t i = 0; i < n; i++)
        any = any || !t->keys[keys[i]].there;
    if (!any || half == t->half)
        return;
    for (uint32_t i = 0; i < N_KEYS; i++) {
        t->keys[i].seen[1] = half == t->half + 1 ? t->keys[i].seen[0] : 0;
        t->keys[i].seen[0] = 0;
    }
    t->half = half;
}

static bool is_over(uint64_t now, uint64_t then, uint64_t span, uint64_t grace)
{
    return span && now - then >= span + grace;
}

/* The shard has swept: what it has kept and removed must be what the rules allow. */
static void reference_sweep(struct reference *t, struct stage *g)
{
    const struct table_spec_limits *l = &t->limits;
    uint64_t ttl_ms = (uint64_t)l->ttl_s * 1000;
    bool rare = l->rare_touches && t->n_rows && t->clock >= t->rare_from;

    for (uint32_t i = 0; i < N_KEYS; i++) {
        struct reference_key *k = &t->keys[i];
        bool there = is_there(g, i), is_rare;

        if (!k->there) {
            assert_false(there);
            continue;
        }
        is_rare = rare && k->visited && k->touches < l->rare_touches;
        if (there) {
            assert_false(is_rare ||
                         is_over(t->clock, k->clock, l->idle_clocks, l->idle_clocks / 32));
            assert_false(is_over(g->now_ms, k->ms, ttl_ms, ttl_ms / 32));
        } else {
            assert_true(is_rare || is_over(t->clock, k->clock, l->idle_clocks, 0) ||
                        is_over(g->now_ms, k->ms, ttl_ms, 0));
            k->there = false;
            t->n_rows--;
            t->n_gone++;
            continue;
        }
        if (rare) {
            k->visited = true;
            k->touches = 0;
        }
    }
    if (rare)
        t->rare_from = t->clock + l->rare_clocks;
}

static void assert_counts(const struct reference *t, struct stage *g)
{
    const struct shard_table *table = table_of(g);
    const struct shard_counters *c = shard_counters(g->s);

    assert_int_equal(table_n_rows(table->rows), t->n_rows);
    assert_int_equal(table->rows_unadmitted, t->n_unadmitted);
    assert_int_equal(table->rows_idle + table->rows_expired + table->rows_rare, t->n_gone);
    assert_int_equal(c->rows_idle + c->rows_expired + c->rows_rare, t->n_gone);
    assert_int_equal(c->rows_new, t->n_rows + t->n_gone);
    assert_int_equal(c->rows_unadmitted, t->n_unadmitted);
}

static void play(struct dice *dice, struct table_spec_limits limits)
{
    static struct reference reference;
    struct reference *t = &reference;
    struct stage g = stage_new(limits);
    uint64_t clock = 0; /* as the table's, which begins at 0 */

    memset(t, 0, sizeof *t);
    t->limits = limits;
    for (int round = 0; round < 1500; round++) {
        uint64_t keys[N_KEYS];
        uint32_t numbers[N_KEYS], n = 0;

        if (round)
            clock += roll(dice, 4) ? roll(dice, 3) : roll(dice, 40);
        for (uint32_t i = 0; i < N_KEYS; i++) /* key 0 in every push, the last in few */
            if (roll(dice, 1 + i * 3) == 0) {
                numbers[n] = i;
                keys[n++] = i;
            }
        push_keys(&g, clock, keys, n);
        t->clock = clock;
        reference_turn(t, numbers, n);
        for (uint32_t i = 0; i < n; i++)
            reference_push(t, numbers[i], g.now_ms);
        advance(&g, 0);
        reference_sweep(t, &g);
        if (roll(dice, 3) == 0) {
            advance(&g, roll(dice, 3000));
            reference_sweep(t, &g);
        }
        assert_counts(t, &g);
    }
    stage_free(&g);
}

static void rows_come_and_go_as_a_trivial_model_says(void **state)
{
    struct dice dice = dice_of_this_run("rows_come_and_go_as_a_trivial_model_says");

    (void)state;
    for (int i = 0; i < 12; i++) {
        struct table_spec_limits limits = { 0 };

        if (i % 4 == 0 || i > 7) {
            limits.admit_touches = 2 + (uint32_t)roll(&dice, 5);
            limits.admit_clocks = 1 + roll(&dice, 300);
        }
        if (i % 4 == 1 || i > 7)
            limits.idle_clocks = 1 + roll(&dice, 500);
        if (i % 4 == 2 || i > 7)
            limits.ttl_s = 1 + (uint32_t)roll(&dice, 60);
        if (i % 4 == 3 || i > 7) {
            limits.rare_touches = 1 + (uint32_t)roll(&dice, 4);
            limits.rare_clocks = 1 + roll(&dice, 200);
        }
        play(&dice, limits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_gets_a_row_at_its_nth_push_within_the_window),
        cmocka_unit_test(a_row_that_is_set_needs_no_admission),
        cmocka_unit_test(a_row_goes_when_no_push_came_for_idle_clocks),
        cmocka_unit_test(a_new_run_that_begins_at_clock_0_moves_the_clock_on),
        cmocka_unit_test(a_row_goes_when_its_time_to_live_is_over),
        cmocka_unit_test(a_row_goes_when_it_had_too_few_pushes),
        cmocka_unit_test(after_a_restart_nothing_goes_before_a_whole_span),
        cmocka_unit_test(a_slice_is_bounded_and_a_pass_goes_on_in_the_next),
        cmocka_unit_test(rows_come_and_go_as_a_trivial_model_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
