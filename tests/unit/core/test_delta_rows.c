/* Rows as differences: both ends have the same floats, whatever is lost, and whatever memory either has. */
#include "server/core/delta_rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "server/core/pull_deltas.h"
#include "server/core/row_init.h"
#include "tests/support/seed.h"

#define N_KEYS 60u
#define DIM_MAX 300u

/* The rows of a shard, and both ends of a connection. */
struct bench {
    struct table_spec spec;
    float *values; /* owned: [N_KEYS][dim], of the shard */
    float *got;    /* owned: as the client has been answered */
    struct delta_memory server_memory, client_memory;
    struct delta_rows server, client;
    uint64_t n_answers, seed, n;
    uint8_t *answer; /* owned */
    size_t answer_bytes;
    const struct codec *full;
    struct section_delta ask;
    uint32_t n_keys;
    uint64_t keys[N_KEYS];
    uint32_t numbers[N_KEYS];
};

static uint64_t draw(struct bench *b)
{
    return hash_mix2(b->seed, b->n++);
}

static float draw_float(struct bench *b)
{
    return (float)(2 * hash_unit(draw(b)) - 1);
}

static void bench_init(struct bench *b, uint32_t dim, enum codec_id full, uint64_t seed)
{
    *b = (struct bench){ .seed = seed, .full = codec_by_id(full) };
    b->spec = (struct table_spec){
        .dim = dim, .seed = seed, .init = TABLE_SPEC_INIT_UNIFORM, .init_scale = 0.05f
    };
    b->values = memory_alloc(N_KEYS * dim * sizeof(float));
    b->got = memory_alloc(N_KEYS * dim * sizeof(float));
    b->answer = memory_alloc(delta_rows_answer_bytes(&b->spec, b->full, N_KEYS));
    for (uint32_t i = 0; i < N_KEYS; i++)
        row_init_row(&b->spec, i, b->values + i * dim);
    assert_int_equal(delta_rows_init(&b->server, &b->spec, &b->server_memory), 0);
    assert_int_equal(delta_rows_init(&b->client, &b->spec, &b->client_memory), 0);
    b->ask = (struct section_delta){ .asked = true,
                                     .mode = SECTION_DELTA_FULL,
                                     .rows_max = UINT32_MAX };
}

static void bench_deinit(struct bench *b)
{
    delta_rows_deinit(&b->server);
    delta_rows_deinit(&b->client);
    assert_int_equal(b->server_memory.budget.used, 0);
    assert_int_equal(b->client_memory.budget.used, 0);
    delta_memory_deinit(&b->server_memory);
    delta_memory_deinit(&b->client_memory);
    free(b->values);
    free(b->got);
    free(b->answer);
}

static void choose_keys(struct bench *b)
{
    b->n_keys = 0;
    for (uint32_t i = 0; i < N_KEYS; i++)
        if (draw(b) % 3) {
            b->numbers[b->n_keys] = b->n_keys;
            b->keys[b->n_keys++] = i;
        }
}

static void ask(struct bench *b)
{
    b->ask.base = delta_rows_ask(&b->client);
}

static void put(const struct bench *b, struct delta_writer *w, uint64_t key)
{
    struct row *row;

    delta_writer_find(w, &key, 1, &row);
    delta_writer_put(w, key, row, b->values + key * b->spec.dim);
}

static void answer(struct bench *b)
{
    struct row *rows[N_KEYS];

    struct delta_writer w;

    delta_writer_open(&w, &b->server, b->full, &b->ask, b->n_keys, ++b->n_answers, b->answer);
    delta_writer_find(&w, b->keys, b->n_keys, rows);
    for (uint32_t i = 0; i < b->n_keys; i++)
        delta_writer_put(&w, b->keys[i], rows[i], b->values + b->keys[i] * b->spec.dim);
    b->answer_bytes = (size_t)(delta_writer_close(&w) - b->answer);
    assert_true(b->answer_bytes <= delta_rows_answer_bytes(&b->spec, b->full, b->n_keys));
}

static int take(struct bench *b)
{
    const struct delta_answer a = { b->full,        b->ask.mode == SECTION_DELTA_SPARSE,
                                    b->n_keys,      b->keys,
                                    b->numbers,     b->answer,
                                    b->answer_bytes };

    return delta_rows_read(&b->client, &a, b->got);
}

static void pull(struct bench *b)
{
    ask(b);
    answer(b);
    assert_int_equal(take(b), 0);
}

static double distance(const float *a, const float *b, uint32_t dim)
{
    double sum = 0;

    for (uint32_t i = 0; i < dim; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / dim);
}

static const float *kept(const struct delta_rows *d, uint64_t key)
{
    struct row *row = NULL;

    if (d->rows)
        table_find_batch(d->rows, &key, 1, &row);
    return row ? row->floats : NULL;
}

/* But for what the client had no memory for. */
static void assert_both_have_the_same(const struct bench *b)
{
    for (uint64_t key = 0; key < N_KEYS; key++) {
        const float *here = kept(&b->server, key), *there = kept(&b->client, key);

        assert_true(!here == !there);
        if (here)
            assert_memory_equal(here, there, b->spec.dim * sizeof *here);
    }
}

static void assert_within(const struct bench *b, double tolerance)
{
    for (uint32_t i = 0; i < b->n_keys; i++) {
        const float *value = b->values + b->keys[i] * b->spec.dim;
        const float *got = b->got + i * b->spec.dim;

        if (tolerance == 0)
            assert_memory_equal(got, value, b->spec.dim * sizeof *got);
        else
            assert_true(distance(got, value, b->spec.dim) <= tolerance * 1.000001);
    }
}

/* Steps of an optimizer, some of them long. */
static void train(struct bench *b)
{
    for (uint32_t i = 0; i < N_KEYS; i++) {
        const float step = draw(b) % 16 ? 0.01f : 3;

        for (uint32_t k = 0; draw(b) % 2 && k < b->spec.dim; k++)
            b->values[i * b->spec.dim + k] += step * draw_float(b);
    }
}

static const struct {
    uint32_t dim;
    enum codec_id full;
    float tolerance;
} kinds[] = { { 16, CODEC_FP32, 0 },     { 16, CODEC_FP32, 0.004f },
              { 1, CODEC_FP32, 0.002f }, { 300, CODEC_FP32, 0.001f },
              { 7, CODEC_FP32, 1e-9f },  { 33, CODEC_FP32, 0.1f } };

/* Answers are lost, connections replaced, memory is short here or there; what the client gets is right each time. */
static void rows_are_within_the_tolerance_whatever_is_lost(void **state)
{
    const uint64_t seed = seed_by_the_clock();

    (void)state;
    for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        uint64_t n_on = 0;
        struct bench b;

        bench_init(&b, kinds[kind].dim, kinds[kind].full, seed);
        b.ask.tolerance = kinds[kind].tolerance;
        for (uint32_t round = 0; round < 400; round++) {
            train(&b);
            choose_keys(&b);
            ask(&b);
            if (draw(&b) % 9 == 0) { /* a new connection */
                delta_rows_deinit(&b.server);
                assert_int_equal(delta_rows_init(&b.server, &b.spec, &b.server_memory), 0);
            }
            b.ask.rows_max = draw(&b) % 5 ? UINT32_MAX : (uint32_t)(draw(&b) % N_KEYS);
            b.server_memory.budget.max = draw(&b) % 5 ? 0 : 1;
            answer(&b);
            n_on += b.answer[12] == 0;
            if (draw(&b) % 7 == 0) /* the answer is lost */
                continue;
            b.client_memory.budget.max = draw(&b) % 5 ? 0 : 1;
            assert_int_equal(take(&b), 0);
            assert_within(&b, kinds[kind].tolerance);
            if (b.client.number)
                assert_both_have_the_same(&b);
        }
        assert_true(n_on > 50);
        bench_deinit(&b);
    }
}

static void change(struct bench *b)
{
    for (uint32_t i = 0; i < N_KEYS * b->spec.dim; i++)
        b->values[i] += 0.01f * draw_float(b);
}

static const enum section_delta_mode forced[] = { SECTION_DELTA_ONEBIT, SECTION_DELTA_INT8,
                                                  SECTION_DELTA_SPARSE };

/* What onebit leaves comes with later pulls: the rows that stay as they are are reached. */
static void what_a_codec_leaves_comes_later(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(forced); i++) {
        struct bench b;
        size_t first_bytes;

        bench_init(&b, 256, CODEC_FP32, seed_by_the_clock());
        b.ask.mode = forced[i];
        b.ask.tolerance = 1e-4f;
        choose_keys(&b);
        change(&b);
        pull(&b); /* both have the rows */
        change(&b);
        pull(&b);
        first_bytes = b.answer_bytes;
        for (uint32_t round = 0; round < 60; round++) {
            pull(&b);
            assert_both_have_the_same(&b);
        }
        assert_within(&b, 1e-4);
        assert_int_equal(b.answer_bytes, section_delta_bytes(b.n_keys));
        assert_true(first_bytes > b.answer_bytes &&
                    first_bytes < b.n_keys * b.full->row_bytes(b.spec.dim, 0) / 3);
        bench_deinit(&b);
    }
}

/* Nothing is left over of rows that are not kept: it would never come. */
static void rows_without_a_place_are_within_the_tolerance(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(forced); i++) {
        const bool is_bare = i % 2;
        struct bench b;

        bench_init(&b, 256, CODEC_FP32, seed_by_the_clock());
        b.ask.mode = forced[i / 2];
        b.ask.tolerance = 1e-6f;
        choose_keys(&b);
        if (is_bare)
            assert_int_equal(delta_rows_init_bare(&b.server, &b.spec, &b.server_memory), 0);
        else
            b.ask.rows_max = 2 * b.n_keys / 3;
        change(&b);
        for (uint32_t round = 0; round < 6; round++) {
            pull(&b);
            assert_within(&b, 1e-6);
            assert_true(delta_rows_n(&b.server) < b.n_keys);
            assert_both_have_the_same(&b);
        }
        bench_deinit(&b);
    }
}

/* One that is new in a later answer, too. */
static void a_row_is_within_the_tolerance_when_it_first_comes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(forced); i++) {
        struct bench b;

        bench_init(&b, 256, CODEC_FP32, seed_by_the_clock());
        b.ask.mode = forced[i];
        b.ask.tolerance = 1e-6f;
        change(&b);
        for (uint64_t key = 0; key < N_KEYS; key++) {
            b.n_keys = 1;
            b.keys[0] = key;
            pull(&b);
            assert_int_equal(!!b.answer[12], key == 0);
            assert_within(&b, 1e-6);
        }
        bench_deinit(&b);
    }
}

/* What changed since is a part of them; a client that has lost them gets them whole. */
static void sparse_differences_are_those_of_rows_that_both_have(void **state)
{
    struct bench b;
    size_t whole_bytes;

    (void)state;
    bench_init(&b, 256, CODEC_FP32, seed_by_the_clock());
    b.ask.mode = SECTION_DELTA_SPARSE;
    b.ask.tolerance = 1e-4f;
    choose_keys(&b);
    whole_bytes = section_delta_bytes(b.n_keys) + b.n_keys * b.full->row_bytes(b.spec.dim, 0);
    change(&b);
    pull(&b);
    assert_int_equal(b.answer_bytes, whole_bytes);
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t k = 0; k < N_KEYS * b.spec.dim; k++)
            if (draw(&b) % 64 == 0)
                b.values[k] += 0.01f * draw_float(&b);
        pull(&b);
        assert_both_have_the_same(&b);
        assert_within(&b, 1e-3);
        assert_true(b.answer_bytes < whole_bytes / 20);
    }
    b.client.number = 0;
    pull(&b);
    assert_int_equal(b.answer_bytes, whole_bytes);
    assert_within(&b, 0);
    bench_deinit(&b);
}

/* Also in a codec that rounds: the same row does not come twice. */
static void rows_that_stay_cost_nothing(void **state)
{
    static const enum codec_id codecs[] = { CODEC_FP32, CODEC_BF16, CODEC_INT8 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(codecs); i++) {
        struct bench b;

        bench_init(&b, 20, codecs[i], seed_by_the_clock());
        choose_keys(&b);
        if (codecs[i] == CODEC_FP32) {
            pull(&b);
            assert_int_equal(b.answer_bytes, section_delta_bytes(b.n_keys));
            assert_int_equal(delta_rows_n(&b.server), 0);
        }
        train(&b);
        pull(&b);
        assert_true(b.answer_bytes > section_delta_bytes(b.n_keys));
        pull(&b);
        assert_int_equal(b.answer_bytes, section_delta_bytes(b.n_keys));
        bench_deinit(&b);
    }
}

/* A pull that was answered in part before the next one came, and one that never was to its end. */
static void an_answer_that_another_overtakes_changes_nothing(void **state)
{
    struct delta_writer late;
    struct bench b;
    uint8_t *other;

    (void)state;
    bench_init(&b, 20, CODEC_FP32, seed_by_the_clock());
    other = memory_alloc(delta_rows_answer_bytes(&b.spec, b.full, N_KEYS));
    choose_keys(&b);
    train(&b);
    b.values[b.keys[0] * b.spec.dim] += 1;
    ask(&b);
    delta_writer_open(&late, &b.server, b.full, &b.ask, b.n_keys, ++b.n_answers, other);
    put(&b, &late, b.keys[0]);
    ask(&b);
    answer(&b);
    train(&b);
    for (uint32_t i = 1; i < b.n_keys; i++)
        put(&b, &late, b.keys[i]);
    (void)delta_writer_close(&late);
    assert_int_equal(late.n_kept, 1);
    assert_int_equal(late.counts.rows[SECTION_DELTA_FULL], b.n_keys);
    assert_int_equal(take(&b), 0);
    assert_both_have_the_same(&b);
    pull(&b);
    assert_false(b.answer[12] & SECTION_DELTA_ANEW);
    assert_within(&b, 0);
    assert_both_have_the_same(&b);

    train(&b); /* refused in the midst: its number is nobody's */
    b.ask.base = b.server.number;
    delta_writer_open(&late, &b.server, b.full, &b.ask, b.n_keys, ++b.n_answers, other);
    put(&b, &late, b.keys[0]);
    assert_int_equal(b.server.number, 0);
    pull(&b);
    assert_true(b.answer[12] & SECTION_DELTA_ANEW);
    assert_within(&b, 0);
    assert_both_have_the_same(&b);
    free(other);
    bench_deinit(&b);
}

/* With space for half of the rows these stay, as long as they are worth more than what is missed. */
static void rows_that_have_space_stay(void **state)
{
    struct bench b;
    uint64_t n;

    (void)state;
    bench_init(&b, 20, CODEC_FP32, seed_by_the_clock());
    for (b.n_keys = 0; b.n_keys < N_KEYS; b.n_keys++)
        b.numbers[b.n_keys] = (uint32_t)(b.keys[b.n_keys] = b.n_keys);
    for (uint32_t i = 0; i < N_KEYS * b.spec.dim; i++)
        b.values[i] += 1;
    b.ask.rows_max = 40;
    pull(&b); /* 20 are missed */
    n = delta_rows_n(&b.server);
    assert_int_equal(n, 40);
    pull(&b); /* and 20 more */
    assert_false(b.answer[12] & SECTION_DELTA_ANEW);
    assert_int_equal(b.answer_bytes, section_delta_bytes(N_KEYS) + 20 * 20 * sizeof(float));
    pull(&b); /* more were missed than are there: another set may fit better */
    pull(&b);
    assert_true(b.answer[12] & SECTION_DELTA_ANEW);
    assert_both_have_the_same(&b);
    bench_deinit(&b);
}

static void numbers_that_are_none_come_whole(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 8, CODEC_FP32, 1);
    b.ask.tolerance = 0.1f;
    b.values[3] = INFINITY;
    b.values[9] = NAN;
    b.values[20] = 3e38f;
    choose_keys(&b);
    for (uint32_t round = 0; round < 3; round++) {
        pull(&b);
        for (uint32_t i = 0; i < b.n_keys && b.keys[i] < 3; i++)
            assert_memory_equal(b.got + i * 8, b.values + b.keys[i] * 8, 8 * sizeof(float));
    }
    bench_deinit(&b);
}

/* Nothing outside the answer is read, and the next pull begins anew. */
static void an_answer_that_is_none_is_refused(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    uint32_t n_refused = 0;
    struct bench b;

    (void)state;
    bench_init(&b, 16, CODEC_FP32, seed);
    b.ask.tolerance = 0.003f;
    for (uint32_t round = 0; round < 4000; round++) {
        size_t n_bytes;
        uint8_t *exact;
        int status;

        b.ask.mode = round % 2 ? SECTION_DELTA_SPARSE : SECTION_DELTA_FULL;
        train(&b);
        choose_keys(&b);
        ask(&b);
        answer(&b);
        n_bytes = draw(&b) % 3 ? b.answer_bytes : draw(&b) % (b.answer_bytes + 1);
        exact = memory_alloc(n_bytes + 1);
        memcpy(exact, b.answer, n_bytes);
        for (uint64_t k = draw(&b) % 4; n_bytes && k; k--)
            exact[draw(&b) % (draw(&b) % 2   ? n_bytes
                              : n_bytes < 20 ? n_bytes
                                             : 20)] ^= (uint8_t)(1u << draw(&b) % 8);
        status = delta_rows_read(
            &b.client,
            &(struct delta_answer){ b.full, b.ask.mode == SECTION_DELTA_SPARSE, b.n_keys,
                                    b.keys, b.numbers, exact, n_bytes },
            b.got);
        free(exact);
        assert_true(status == 0 || status == PS_ECOUNT || status == PS_ECODEC);
        if (status)
            assert_int_equal(b.client.number, 0);
        n_refused += status != 0;
        if (status) {
            pull(&b);
            assert_within(&b, 0.003);
            continue;
        }
        delta_rows_ask(&b.client); /* what it has is anybody's guess */
    }
    assert_true(n_refused > 500);
    bench_deinit(&b);
}

static bool is_odd(void *arg, uint32_t table_id)
{
    (void)arg;
    return table_id % 2;
}

static bool is_none(void *arg, uint32_t table_id)
{
    (void)arg;
    (void)table_id;
    return false;
}

/* One that has no place gets rows that are never kept. */
static struct delta_rows *find_rows(struct pull_deltas *p, uint32_t id,
                                    const struct table_spec *spec, struct delta_rows *bare)
{
    struct delta_rows *rows = bare;

    assert_int_equal(pull_deltas_find(p, id, spec, &rows), 0);
    assert_int_equal(rows->is_bare, rows == bare);
    return rows;
}

static void each_table_of_a_connection_has_its_own(void **state)
{
    struct table_spec spec = { .dim = 4 };
    struct delta_memory memory = { 0 };
    struct pull_deltas *p = pull_deltas_new(&memory);
    struct delta_rows *first, bare;

    (void)state;
    first = find_rows(p, 7, &spec, &bare);
    for (uint32_t id = 100; id < 99 + PULL_DELTAS_TABLES_MAX; id++)
        assert_true(find_rows(p, id, &spec, &bare) != first);
    assert_true(find_rows(p, 99, &spec, &bare) == &bare);
    memset(&spec, 0xff, sizeof spec); /* it has been copied */
    assert_true(find_rows(p, 7, &spec, &bare) == first && first->spec->dim == 4);
    assert_true(pull_deltas_next_number(p) != pull_deltas_next_number(p));
    pull_deltas_free(p);
    pull_deltas_free(NULL);
    assert_int_equal(memory.budget.used, 0);
    delta_memory_deinit(&memory);
}

static void what_is_known_of_tables_has_a_budget_and_goes_with_them(void **state)
{
    struct table_spec spec = { .dim = 4 };
    struct delta_memory memory = { .budget.max = 20000 };
    struct pull_deltas *p = pull_deltas_new(&memory);
    struct delta_rows bare, *rows;
    uint64_t used;
    uint32_t n = 0;

    (void)state;
    while (find_rows(p, n, &spec, &bare) != &bare)
        n++;
    used = memory.budget.used;
    assert_true(n > 4 && n < PULL_DELTAS_TABLES_MAX && used <= 20000);
    pull_deltas_drop(p, is_odd, NULL);
    assert_int_equal(memory.budget.used, used / n * (n / 2));
    rows = find_rows(p, 1, &spec, &bare);
    assert_true(rows != &bare && find_rows(p, 3, &spec, &bare) != rows);
    assert_true(find_rows(p, 0, &spec, &bare) != &bare); /* another one, which begins anew */
    pull_deltas_drop(p, is_none, NULL);
    assert_int_equal(memory.budget.used, 0);
    pull_deltas_free(p);
    delta_memory_deinit(&memory);
}

#ifdef PS_FAULTS
static void without_memory_a_table_is_not_found(void **state)
{
    struct table_spec spec = { .dim = 4 };
    struct delta_rows bare, *rows = NULL;

    (void)state;
    for (long n = 0; rows == NULL || rows == &bare; n++) {
        struct delta_memory memory = { 0 };
        struct pull_deltas *p;
        int status = -ENOMEM;

        memory_fail_after(n);
        p = pull_deltas_new(&memory);
        rows = &bare;
        if (p)
            status = pull_deltas_find(p, 1, &spec, &rows);
        memory_fail_after(-1);
        assert_true(!status || status == -ENOMEM);
        pull_deltas_free(p);
        delta_memory_deinit(&memory);
        assert_int_equal(memory.budget.used, 0);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_within_the_tolerance_whatever_is_lost),
        cmocka_unit_test(what_a_codec_leaves_comes_later),
        cmocka_unit_test(rows_without_a_place_are_within_the_tolerance),
        cmocka_unit_test(a_row_is_within_the_tolerance_when_it_first_comes),
        cmocka_unit_test(sparse_differences_are_those_of_rows_that_both_have),
        cmocka_unit_test(rows_that_stay_cost_nothing),
        cmocka_unit_test(an_answer_that_another_overtakes_changes_nothing),
        cmocka_unit_test(rows_that_have_space_stay),
        cmocka_unit_test(numbers_that_are_none_come_whole),
        cmocka_unit_test(an_answer_that_is_none_is_refused),
        cmocka_unit_test(each_table_of_a_connection_has_its_own),
        cmocka_unit_test(what_is_known_of_tables_has_a_budget_and_goes_with_them),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_a_table_is_not_found),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
