/* One shard: tables, pull, push. What it refuses: test_shard_refusals.c; budget
 * and memory: test_shard_memory.c; clocks: test_shard_modes.c,
 * test_bsp.c, test_shard_waiting.c. */
#include "server/core/shard.h"

#include <errno.h>
#include <math.h>

#include "golden.h"

#define DIM 4u

static void a_table_is_made_once_and_found_again(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAM), other = spec;
    struct shard *s = make_shard(0, 1, 0);
    uint32_t a = 9, b = 9;
    struct err err = { 0 };

    (void)state;
    enter_shard();
    assert_int_equal(shard_table_open(s, &spec, true, &a, &err), PS_ENOTABLE);
    assert_int_equal(shard_table_open(s, &spec, false, &a, &err), 0);
    assert_int_equal(shard_table_open(s, &spec, false, &b, &err), 0);
    assert_int_equal(a, b);
    assert_int_equal(shard_table(s, a)->payload_bytes, 3 * DIM * sizeof(float));
    other.dim = 8;
    b = 9;
    assert_int_equal(shard_table_open(s, &other, false, &b, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "dim"));
    assert_int_equal(b, 9);
    assert_int_equal(shard_table_open(s, &other, true, &b, &err), 0); /* only the name counts */
    assert_int_equal(b, a);
    snprintf(other.name, sizeof other.name, "second");
    other.dim = 0;
    assert_int_equal(shard_table_open(s, &other, false, &b, &err), PS_ESPEC);
    assert_int_equal(shard_n_tables(s), 1);
    assert_null(shard_table(s, 1));
    shard_free(s);
    shard_free(NULL);
}

static void the_number_of_tables_has_an_end(void **state)
{
    struct table_spec spec = sparse_spec("", 1, TABLE_SPEC_SGD);
    const struct shard_config config = { .n_shards = 1,
                                         .lease_ms = LEASE_MS,
                                         .join_ms = JOIN_MS,
                                         .park_ms = 1,
                                         .tables_max = 3000 };
    struct shard *s = shard_new(&config);
    uint32_t id;
    struct err err;

    (void)state;
    enter_shard();
    for (uint32_t i = 0; i < config.tables_max; i++) {
        snprintf(spec.name, sizeof spec.name, "t%u", i);
        assert_int_equal(make_table(s, &spec), i);
    }
    snprintf(spec.name, sizeof spec.name, "one-more");
    assert_int_equal(shard_table_open(s, &spec, false, &id, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "--tables-max"));
    snprintf(spec.name, sizeof spec.name, "t%u", config.tables_max - 1);
    assert_int_equal(make_table(s, &spec), config.tables_max - 1); /* found by its name */
    shard_free(s);
}

/* Weights by assignment, then the case's gradients, all as encoded sections. */
static void run_golden(const struct golden_case *c)
{
    const struct table_spec spec = golden_spec(c);
    struct golden_grads grads = golden_grads_load(c->name);
    struct npy p0 = npy_load(c->name, "p0");
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec), row_floats;
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0);
    float *rows;
    const float *g;

    enter_shard();
    for (uint32_t r = 0; r < GOLDEN_ROWS; r++)
        grads.keys[r] = r;
    add_assign(push, table, GOLDEN_COLS, grads.keys, GOLDEN_ROWS, p0.f);
    push->tick = false;
    must_push(s, w, push);
    row_floats = shard_table(s, table)->payload_bytes / (uint32_t)sizeof(float);
    rows = memory_alloc(GOLDEN_ROWS * row_floats * sizeof *rows);
    for (uint32_t t = 0; t < GOLDEN_STEPS; t++) {
        uint32_t n = golden_step(&grads, t, &g);

        push = next_push(w, t);
        add_gradient(push, table, GOLDEN_COLS, grads.keys, n, g);
        must_push(s, w, push);
        for (uint32_t r = 0; r < GOLDEN_ROWS; r++)
            memcpy(rows + r * row_floats, find_row(s, table, r)->floats,
                   row_floats * sizeof *rows);
        golden_check(c, t, rows, row_floats);
        assert_int_equal(shard_table(s, table)->n_pushes, t + 1);
    }
    assert_int_equal(w->clock, GOLDEN_STEPS);
    npy_free(&p0);
    golden_grads_free(&grads);
    free(rows);
    shard_free(s);
}

static void golden_numbers_come_out_of_encoded_pushes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(golden_cases); i++)
        run_golden(&golden_cases[i]);
}

static void a_key_without_a_row_reads_as_it_will_start(void **state)
{
    static const uint64_t keys[] = { 0, 5, UINT64_MAX };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    const float zeros[3 * DIM] = { 0 };
    float before[3 * DIM], after[3 * DIM];
    struct push *push = next_push(w, 0);

    (void)state;
    enter_shard();
    read_weights(s, table, keys, 3, before);
    assert_int_equal(table_n_rows(shard_table(s, table)->rows), 0);
    assert_memory_not_equal(before, zeros, sizeof before);
    add_gradient(push, table, DIM, keys, 3, zeros);
    must_push(s, w, push);
    assert_int_equal(table_n_rows(shard_table(s, table)->rows), 3);
    read_weights(s, table, keys, 3, after);
    assert_floats_equal(after, before, 3 * DIM);
    assert_int_equal(shard_counters(s)->rows_new, 3);
    assert_int_equal(shard_counters(s)->rows_pulled, 6);
    shard_free(s);
}

static void every_codec_works_in_pushes_and_pulls(void **state)
{
    static const uint64_t keys[] = { 3, 4 };
    const float g[2 * DIM] = { 1, -2, 0.5f, 4, 8, 8, -8, 8 };

    (void)state;
    enter_shard();
    for (unsigned id = 0; id < CODEC_ID_END; id++) {
        const struct codec *codec = codec_by_id(id);
        struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
        struct shard *s = make_shard(0, 1, 0);
        uint32_t table, k = id == CODEC_TOPK ? DIM / 2 : 0;
        struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        size_t row_bytes = codec->row_bytes(DIM, k), n_bytes;
        struct push *push = next_push(w, 0);
        struct pull *pull;
        uint8_t got[64], want[64];
        uint64_t min_clock, version;
        float decoded[DIM];

        spec.init = TABLE_SPEC_INIT_ZERO;
        spec.params.learning_rate = 1;
        table = make_table(s, &spec);
        add_section(push, table, SECTION_GRADIENT, (enum codec_id)id, DIM, keys, 2, g);
        must_push(s, w, push);
        assert_int_equal(shard_counters(s)->value_bytes_in[id], 2 * row_bytes);
        pull = make_pull(0, table, keys, 2);
        pull->sections[0].codec = (enum codec_id)id;
        pull->sections[0].k = k;
        assert_int_equal(shard_pull_plan(s, pull, 1000, &n_bytes, NULL), 0);
        assert_int_equal(n_bytes, 2 * row_bytes);
        assert_int_equal(shard_pull(s, w, pull, got, &min_clock, &version, NULL), 0);
        for (uint32_t i = 0; i < 2; i++) {
            codec->encode(g + i * DIM, DIM, k, want);
            assert_int_equal(codec->decode(want, DIM, k, decoded), 0);
            for (uint32_t j = 0; j < DIM; j++)
                decoded[j] = 0 - decoded[j];
            codec->encode(decoded, DIM, k, want);
            assert_memory_equal(got + i * row_bytes, want, row_bytes);
        }
        assert_int_equal(min_clock, 1);
        assert_int_equal(version, 1);
        assert_int_equal(shard_counters(s)->value_bytes_out[id], 2 * row_bytes);
        free_pull(pull);
        shard_free(s);
    }
}

/* One push of 20 random gradients; the same (seed, i) gives the same push. */
static struct push *random_push(uint64_t seed, uint64_t i, uint32_t table)
{
    struct dice dice = { .seed = hash_mix2(seed, i) };
    struct push *push = memory_alloc(sizeof *push);
    float g[20 * DIM];
    uint64_t keys[20];

    for (uint32_t k = 0; k < 20; k++)
        keys[k] = (k ? keys[k - 1] : 0) + 1 + roll(&dice, 5);
    for (size_t k = 0; k < COUNT_OF(g); k++)
        g[k] = roll_float(&dice);
    push->seq = i + 1;
    push->clock = i;
    push->tick = true;
    add_gradient(push, table, DIM, keys, 20, g);
    return push;
}

/* A link that repeats, runs ahead and resends at random must end where a perfect one does. */
static void a_push_is_applied_once_whatever_the_link_does(void **state)
{
    enum { N_PUSHES = 100, N_KEYS = 101 };
    struct dice dice = dice_of_this_run("sequence");
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAM);
    struct shard *s = make_shard(0, 1, 0), *reference = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec), next = 0;
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1),
                  *reference_w = join(reference, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    uint64_t keys[N_KEYS], n_repeated = 0;
    float got[N_KEYS * DIM], want[N_KEYS * DIM];
    struct shard_push_result result;

    (void)state;
    enter_shard();
    make_table(reference, &spec);
    for (uint32_t i = 0; i < N_PUSHES; i++)
        must_push(reference, reference_w, random_push(dice.seed, i, table));
    while (next < N_PUSHES) {
        uint32_t i = (uint32_t)roll(&dice, next + 3);

        if (i >= N_PUSHES)
            continue;
        result = try_push(s, w, random_push(dice.seed, i, table));
        assert_int_equal(result.status, i > next ? PS_ESEQ : 0);
        assert_int_equal(result.repeated, i < next);
        n_repeated += i < next;
        next += i == next;
        assert_int_equal(w->last_seq, next);
    }
    for (uint64_t k = 0; k < N_KEYS; k++)
        keys[k] = k;
    read_weights(s, table, keys, N_KEYS, got);
    read_weights(reference, table, keys, N_KEYS, want);
    assert_floats_equal(got, want, N_KEYS * DIM);
    assert_int_equal(shard_table(s, table)->n_pushes, N_PUSHES);
    assert_int_equal(shard_counters(s)->pushes_repeated, n_repeated);
    assert_int_equal(shard_version(s), shard_version(reference));
    shard_free(s);
    shard_free(reference);
}

static void the_step_count_is_the_tables_and_an_empty_push_counts(void **state)
{
    static const uint64_t key = 3;
    const float g[DIM] = { 1, 1, 1, 1 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAM),
                      other = sparse_spec("other", DIM, TABLE_SPEC_ADAM);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t a = make_table(s, &spec), b = make_table(s, &other);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0);

    (void)state;
    enter_shard();
    add_gradient(push, a, DIM, &key, 0, g);
    must_push(s, w, push);
    assert_int_equal(shard_table(s, a)->n_pushes, 1);
    assert_int_equal(shard_table(s, b)->n_pushes, 0);
    push = next_push(w, 1);
    add_gradient(push, a, DIM, &key, 1, g);
    add_assign(push, b, DIM, &key, 1, g);
    must_push(s, w, push);
    assert_int_equal(shard_table(s, a)->n_pushes, 2);
    assert_int_equal(shard_table(s, b)->n_pushes, 0); /* an assignment is no step */
    must_push(s, w, next_push(w, 2));
    assert_int_equal(shard_table(s, a)->n_pushes, 2);
    assert_int_equal(w->clock, 3);
    shard_free(s);
}

static void rows_know_the_push_that_changed_them_last(void **state)
{
    static const uint64_t keys[] = { 1, 2 };
    const float g[2 * DIM] = { 0 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 10);

    (void)state;
    enter_shard();
    add_gradient(push, table, DIM, keys, 2, g);
    must_push(s, w, push);
    push = next_push(w, 11);
    add_gradient(push, table, DIM, keys + 1, 1, g);
    assert_int_equal(must_push(s, w, push).version, 2);
    assert_int_equal(row_version(find_row(s, table, 1)), 1);
    assert_int_equal(row_version(find_row(s, table, 2)), 2);
    shard_free(s);
}

static void a_long_gradient_is_clipped_to_the_norm_before_the_optimizer(void **state)
{
    static const uint64_t keys[] = { 1, 2, 3 };
    const float huge = 3e38f;
    const float g[3 * DIM] = { 3, 0, 4, 0, 0.3f, 0, 0.4f, 0, huge, huge, huge, huge };
    const float want[3 * DIM] = { -0.6f, 0, -0.8f, 0,     -0.3f, 0,
                                  -0.4f, 0, -0.5f, -0.5f, -0.5f, -0.5f };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0);
    uint32_t table;
    float got[3 * DIM];

    (void)state;
    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = 1;
    spec.clip_norm = 1;
    table = make_table(s, &spec);
    add_gradient(push, table, DIM, keys, 3, g);
    must_push(s, w, push);
    read_weights(s, table, keys, 3, got);
    for (uint32_t i = 0; i < 3 * DIM; i++)
        assert_true(fabsf(got[i] - want[i]) < 1e-6f);
    shard_free(s);
}

static void the_rate_is_that_of_the_pushs_clock(void **state)
{
    static const uint64_t key = 1;
    const float g[DIM] = { 1, 1, 1, 1 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 1);
    uint32_t table;
    float got[DIM];

    (void)state;
    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = 1;
    spec.schedule.warmup_clocks = 4;
    table = make_table(s, &spec);
    add_gradient(push, table, DIM, &key, 1, g);
    must_push(s, w, push);
    read_weights(s, table, &key, 1, got);
    assert_true(got[0] == -0.5f);
    shard_free(s);
}

static void an_assignment_starts_the_state_anew(void **state)
{
    static const uint64_t key = 1;
    const float g[DIM] = { 1, 2, 3, 4 }, w0[DIM] = { 5, 6, 7, 8 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0);
    uint32_t table;

    (void)state;
    spec.params.initial_accumulator = 0.125f;
    table = make_table(s, &spec);
    add_gradient(push, table, DIM, &key, 1, g);
    must_push(s, w, push);
    push = next_push(w, 1);
    add_assign(push, table, DIM, &key, 1, w0);
    must_push(s, w, push);
    assert_floats_equal(find_row(s, table, key)->floats, w0, DIM);
    for (uint32_t i = 0; i < DIM; i++)
        assert_true(find_row(s, table, key)->floats[DIM + i] == 0.125f);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_made_once_and_found_again),
        cmocka_unit_test(the_number_of_tables_has_an_end),
        cmocka_unit_test(golden_numbers_come_out_of_encoded_pushes),
        cmocka_unit_test(a_key_without_a_row_reads_as_it_will_start),
        cmocka_unit_test(every_codec_works_in_pushes_and_pulls),
        cmocka_unit_test(a_push_is_applied_once_whatever_the_link_does),
        cmocka_unit_test(the_step_count_is_the_tables_and_an_empty_push_counts),
        cmocka_unit_test(rows_know_the_push_that_changed_them_last),
        cmocka_unit_test(a_long_gradient_is_clipped_to_the_norm_before_the_optimizer),
        cmocka_unit_test(the_rate_is_that_of_the_pushs_clock),
        cmocka_unit_test(an_assignment_starts_the_state_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
