/*
 * Decay of whole tables against a reference that decays each row at every step: what pulls, scans and rows show, whatever
 * was pushed and set meanwhile. Replays and slices: test_replay.c, test_shard_slices.c.
 */
#include <math.h>

#include "fixture.h"
#include "server/core/row_decay.h"

enum { DIM = 3, N_KEYS = 9, N_STEPS = 400 };

#define X 0.03f

/* All keys of a table, of SGD, as if each had a row from the first step on. */
struct reference {
    struct shard *s;
    struct worker *worker;
    uint32_t table;
    double weights[N_KEYS][DIM];
    float lr;
};

static const uint64_t keys[N_KEYS] = { 3, 5, 8, 13, 21, 34, 55, 89, 144 };

static void reference_init(struct reference *t, enum table_spec_storage storage)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    float initial[N_KEYS * DIM];

    spec.row_decay = X;
    spec.storage = storage;
    spec.init = TABLE_SPEC_INIT_UNIFORM;
    spec.init_scale = 0.5f;
    spec.params.learning_rate = t->lr = 0.1f;
    t->s = make_shard(0, 1, 0);
    t->table = make_table(t->s, &spec);
    t->worker = join(t->s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    read_weights(t->s, t->table, keys, N_KEYS, initial);
    for (uint32_t i = 0; i < N_KEYS * DIM; i++)
        t->weights[i / DIM][i % DIM] = (double)initial[i];
}

static void check(struct reference *t, double tolerance)
{
    float got[N_KEYS * DIM];

    read_weights(t->s, t->table, keys, N_KEYS, got);
    for (uint32_t i = 0; i < N_KEYS * DIM; i++) {
        const double want = t->weights[i / DIM][i % DIM];

        if (!(fabs((double)got[i] - want) <= tolerance * (1 + fabs(want))))
            fail_msg("key %u: %.9g is not %.9g", i / DIM, (double)got[i], want);
    }
}

/* A few keys have a gradient, or are set; an empty push is a step, too. */
static void step(struct reference *t, struct dice *d, uint64_t clock)
{
    const enum section_op op = roll(d, 5) ? SECTION_GRADIENT : SECTION_ASSIGN;
    struct push *push = next_push(t->worker, clock);
    float values[N_KEYS * DIM];
    uint64_t some[N_KEYS];
    uint32_t n = 0, at[N_KEYS];

    for (uint32_t i = 0; i < N_KEYS - 1; i++) /* the last one is never pushed */
        if (roll(d, 12) == 0)
            some[n] = keys[i], at[n++] = i;
    for (uint32_t i = 0; i < n * DIM; i++)
        values[i] = roll_float(d);
    add_section(push, t->table, op, CODEC_FP32, DIM, some, n, values);
    for (uint32_t i = 0; i < N_KEYS * DIM && op == SECTION_GRADIENT; i++)
        t->weights[i / DIM][i % DIM] *= 1 - (double)X;
    for (uint32_t i = 0; i < n * DIM; i++) {
        double *w = &t->weights[at[i / DIM]][i % DIM];

        *w =
            op == SECTION_GRADIENT ? *w - (double)t->lr * (double)values[i] : (double)values[i];
    }
    must_push(t->s, t->worker, push);
}

static void rows_are_as_if_they_decayed_at_every_step(void **state)
{
    struct dice dice = dice_of_this_run(__func__);
    struct reference t;

    (void)state;
    enter_shard();
    reference_init(&t, TABLE_SPEC_FP32);
    for (uint64_t i = 0; i < N_STEPS; i++) {
        step(&t, &dice, i);
        check(&t, 2e-6);
    }
    assert_null(find_row(t.s, t.table, keys[N_KEYS - 1]));
    assert_true(fabs(t.weights[N_KEYS - 1][0]) < 0.5 * pow(1 - (double)X, 100));
    shard_free(t.s);
}

/* Each push rounds at random, and no pull does more than show. */
static void stored_halves_decay_too(void **state)
{
    struct dice dice = dice_of_this_run(__func__);
    struct reference t;

    (void)state;
    enter_shard();
    reference_init(&t, TABLE_SPEC_BF16);
    for (uint64_t i = 0; i < N_STEPS; i++) {
        step(&t, &dice, i);
        check(&t, 0.05);
    }
    shard_free(t.s);
}

/* Delay compensation: what has decayed since the pull is no delay of others. */
static void a_gradient_of_what_was_pulled_is_not_late(void **state)
{
    const float none[DIM] = { 0 }, ones[DIM] = { 1, 1, 1 };
    const struct section_delay delay = { .lambda = 1000, .constant = true };
    struct push *push;
    struct reference t;
    float then[DIM], got[DIM];

    (void)state;
    enter_shard();
    reference_init(&t, TABLE_SPEC_FP32);
    push = next_push(t.worker, 0);
    add_assign(push, t.table, DIM, keys, 1, ones);
    must_push(t.s, t.worker, push);
    for (uint64_t i = 1; i <= 20; i++) {
        push = next_push(t.worker, i);
        add_gradient(push, t.table, DIM, keys + 1, 1, none);
        must_push(t.s, t.worker, push);
    }
    read_weights(t.s, t.table, keys, 1, then);
    push = next_push(t.worker, 21);
    add_gradient_at(push, t.table, CODEC_FP32, DIM, keys, 1, ones, then, delay);
    must_push(t.s, t.worker, push);
    read_weights(t.s, t.table, keys, 1, got);
    for (uint32_t i = 0; i < DIM; i++)
        if (!(fabsf(got[i] - (then[i] * (1 - X) - t.lr)) <= 1e-6f))
            fail_msg("%.9g, of %.9g", (double)got[i], (double)then[i]);
    shard_free(t.s);
}

/* Of one row: its last push, and readers any number of steps behind it. */
static void a_row_keeps_what_its_last_push_left(void **state)
{
    const float none[DIM] = { 0 }, ones[DIM] = { 1, 1, 1 };
    const struct row *row;
    struct push *push;
    struct reference t;
    float got[DIM];

    (void)state;
    enter_shard();
    reference_init(&t, TABLE_SPEC_FP32);
    push = next_push(t.worker, 0);
    add_assign(push, t.table, DIM, keys, 1, ones);
    must_push(t.s, t.worker, push);
    for (uint64_t i = 1; i <= 50; i++) {
        push = next_push(t.worker, i);
        add_gradient(push, t.table, DIM, keys + 1, 1, none);
        must_push(t.s, t.worker, push);
        row = find_row(t.s, t.table, keys[0]);
        assert_true(row->floats[0] == 1 && row->floats[DIM] == 0);
        read_weights(t.s, t.table, keys, 1, got);
        assert_true(got[0] == (i == 1 ? 1 - X : (float)exp((double)i * log1p(-(double)X))));
        row_decay_show(shard_table(t.s, t.table), row, memcpy(got, row->floats, sizeof got));
        assert_true(got[1] == (i == 1 ? 1 - X : (float)exp((double)i * log1p(-(double)X))));
    }
    shard_free(t.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_as_if_they_decayed_at_every_step),
        cmocka_unit_test(stored_halves_decay_too),
        cmocka_unit_test(a_gradient_of_what_was_pulled_is_not_late),
        cmocka_unit_test(a_row_keeps_what_its_last_push_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
