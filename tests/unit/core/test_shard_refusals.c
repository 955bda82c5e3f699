/* What a shard refuses, and that it is the same shard afterwards. */
#include "server/core/shard.h"

#include <math.h>

#include "fixture.h"

#define DIM 4u

/* Each row of a refusal table spoils a good push in one way. */
struct spoiled {
    const char *what;
    int status;
    void (*spoil)(struct push *push);
};

static uint8_t *bytes_of(const uint8_t *bytes)
{
    return (uint8_t *)(uintptr_t)bytes;
}

static void no_table(struct push *p)
{
    p->sections[1].table_id = 2;
}
static void no_op(struct push *p)
{
    p->sections[1].op = SECTION_OP_END;
}
static void no_codec(struct push *p)
{
    p->sections[1].codec = CODEC_ID_END;
}
static void topk_of_none(struct push *p)
{
    p->sections[0].codec = CODEC_TOPK;
}
static void topk_of_more_than_all(struct push *p)
{
    p->sections[0].codec = CODEC_TOPK;
    p->sections[0].k = DIM + 1;
}
static void topk_with_bad_indices(struct push *p)
{
    p->sections[0].codec = CODEC_TOPK; /* floats read as indices */
    p->sections[0].k = 2;
    p->sections[0].value_bytes = 3 * 12;
    memset(bytes_of(p->sections[0].values), 0xff, 3 * 12);
}
static void too_few_values(struct push *p)
{
    p->sections[1].value_bytes--;
}
static void too_many_values(struct push *p)
{
    p->sections[1].value_bytes++;
}
static void more_keys_than_bytes(struct push *p)
{
    p->sections[1].n_keys = UINT32_MAX;
}
static void one_key_more(struct push *p)
{
    p->sections[1].n_keys++;
    p->sections[1].value_bytes = (size_t)p->sections[1].n_keys * sizeof(float) * DIM;
}
static void one_key_byte_less(struct push *p)
{
    p->sections[1].key_bytes--;
}
static void keys_that_repeat(struct push *p)
{
    bytes_of(p->sections[0].keys)[1] = 0;
}
static void block_beyond_the_end(struct push *p)
{
    bytes_of(p->sections[1].keys)[1] = 6; /* blocks 0 and 6 of 0..5 */
}
static void nan_at_the_end(struct push *p)
{
    float nan = NAN;

    memcpy(bytes_of(p->sections[1].values) + p->sections[1].value_bytes - 4, &nan, 4);
}
static void minus_infinity(struct push *p)
{
    float infinity = -INFINITY;

    memcpy(bytes_of(p->sections[0].values) + 4, &infinity, 4);
}
static void nan_in_an_assignment(struct push *p)
{
    p->sections[0].op = SECTION_ASSIGN;
    minus_infinity(p);
}
static void a_huge_weight_assigned(struct push *p)
{
    float huge = 1.1e15f;

    p->sections[0].op = SECTION_ASSIGN;
    memcpy(bytes_of(p->sections[0].values) + 4, &huge, 4);
}
static void a_table_twice(struct push *p)
{
    p->sections[1].table_id = 0;
}
static void clock_out_of_range(struct push *p)
{
    p->clock = UINT64_MAX;
}

static const struct spoiled spoiled[] = {
    { "unknown table", PS_ENOTABLE, no_table },
    { "unknown operation", PS_EPROTO, no_op },
    { "unknown codec", PS_ECODEC, no_codec },
    { "topk with k 0", PS_ECODEC, topk_of_none },
    { "topk with k above dim", PS_ECODEC, topk_of_more_than_all },
    { "topk bytes that make no sense", PS_ECODEC, topk_with_bad_indices },
    { "a byte of values too few", PS_EWIDTH, too_few_values },
    { "a byte of values too many", PS_EWIDTH, too_many_values },
    { "4 billion keys in 2 bytes", PS_ECOUNT, more_keys_than_bytes },
    { "one key more than there are", PS_ECOUNT, one_key_more },
    { "one byte of keys missing", PS_ECOUNT, one_key_byte_less },
    { "a key twice", PS_EORDER, keys_that_repeat },
    { "a block beyond the array's end", PS_ESHARD, block_beyond_the_end },
    { "NaN as the last value", PS_ENAN, nan_at_the_end },
    { "minus infinity", PS_ENAN, minus_infinity },
    { "infinity assigned", PS_ENAN, nan_in_an_assignment },
    { "1.1e15 assigned", PS_ENAN, a_huge_weight_assigned },
    { "one table in two sections", PS_EPROTO, a_table_twice },
    { "clock 2^64 - 1", PS_EPROTO, clock_out_of_range },
};

static void a_bad_push_is_refused_whole_and_uses_up_its_number(void **state)
{
    static const uint64_t keys[] = { 5, 6, 700 }, blocks[] = { 0, 5 };
    const float ones[3 * DIM] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    struct table_spec emb = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD),
                      top = dense_spec("top", DIM, 22, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t a = make_table(s, &emb), b = make_table(s, &top);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    float before[2][3 * DIM], after[2][3 * DIM];
    uint64_t clock = 0;
    struct push *push;

    (void)state;
    enter_shard();
    read_weights(s, a, keys, 3, before[0]);
    read_weights(s, b, blocks, 2, before[1]);
    for (size_t i = 0; i < COUNT_OF(spoiled); i++) {
        uint64_t seq = w->last_seq + 1;
        bool ticks = spoiled[i].spoil != clock_out_of_range;
        struct shard_push_result result;

        push = next_push(w, clock);
        add_gradient(push, a, DIM, keys, 3, ones);
        add_gradient(push, b, DIM, blocks, 2, ones);
        spoiled[i].spoil(push);
        result = try_push(s, w, push);
        if (result.status != spoiled[i].status)
            fail_msg("%s: status %d (%s), expected %d", spoiled[i].what, result.status,
                     result.text, spoiled[i].status);
        assert_false(result.repeated);
        assert_int_equal(w->last_seq, seq);
        clock += ticks;
        assert_int_equal(w->clock, clock);
        assert_int_equal(shard_last_refusal(s)->n, i + 1);
        assert_int_equal(shard_last_refusal(s)->status, spoiled[i].status);
        assert_string_equal(shard_last_refusal(s)->text, result.text);
        assert_string_equal(shard_last_refusal(s)->worker, "tester");
    }
    read_weights(s, a, keys, 3, after[0]);
    read_weights(s, b, blocks, 2, after[1]);
    assert_floats_equal(after[0], before[0], 3 * DIM);
    assert_floats_equal(after[1], before[1], 2 * DIM);
    assert_int_equal(table_n_rows(shard_table(s, a)->rows), 0);
    assert_int_equal(shard_table(s, a)->n_pushes, 0);
    assert_int_equal(shard_version(s), 0);
    assert_int_equal(shard_counters(s)->pushes_refused, COUNT_OF(spoiled));
    assert_int_equal(shard_counters(s)->nan_pushes, 3);
    push = next_push(w, clock);
    add_gradient(push, a, DIM, keys, 3, ones);
    must_push(s, w, push); /* and the shard still serves */
    shard_free(s);
}

static void a_nan_is_reported_with_its_table_key_and_worker(void **state)
{
    static const uint64_t keys[] = { 5, 6 };
    const float g[2 * DIM] = { 0, 0, 0, 0, 0, 0, NAN, 0 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 42);
    const struct shard_refusal *refusal;

    (void)state;
    enter_shard();
    add_gradient(push, table, DIM, keys, 2, g);
    assert_int_equal(try_push(s, w, push).status, PS_ENAN);
    refusal = shard_last_refusal(s);
    assert_string_equal(refusal->table, "emb");
    assert_string_equal(refusal->worker, "tester");
    assert_int_equal(refusal->key, 6);
    assert_int_equal(refusal->clock, 42);
    assert_non_null(strstr(refusal->text, "NaN"));
    shard_free(s);
}

static void a_key_of_another_shard_is_refused_by_pull_and_push(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    const float zeros[DIM] = { 0 };

    (void)state;
    enter_shard();
    for (uint32_t shard = 0; shard < 3; shard++) {
        struct shard *s = make_shard(shard, 3, 0);
        uint32_t table = make_table(s, &spec);
        struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        uint64_t min_clock, version;
        uint8_t dst[64];

        for (uint64_t key = 0; key < 20; key++) {
            int want = placement_shard(key, 0, 3) == shard ? 0 : PS_ESHARD;
            struct push *push = next_push(w, 0);
            struct pull *pull = make_pull(0, table, &key, 1);
            struct err err;

            add_gradient(push, table, DIM, &key, 1, zeros);
            assert_int_equal(try_push(s, w, push).status, want);
            assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), want);
            free_pull(pull);
        }
        shard_free(s);
    }
}

static void a_bad_pull_is_refused_with_a_sentence(void **state)
{
    static const uint64_t keys[] = { 1, 2, 3 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD),
                      dense = dense_spec("top", DIM, 8, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec), top = make_table(s, &dense);
    struct pull *pull = make_pull(0, table, keys, 3);
    uint64_t min_clock, version;
    uint8_t dst[3 * DIM * 4];
    size_t n_bytes;
    struct err err;

    (void)state;
    enter_shard();
    assert_int_equal(shard_pull_plan(s, pull, sizeof dst - 1, &n_bytes, &err), PS_ETOOBIG);
    assert_int_equal(shard_pull_plan(s, pull, sizeof dst, &n_bytes, &err), 0);
    pull->sections[0].table_id = 2;
    assert_int_equal(shard_pull_plan(s, pull, sizeof dst, &n_bytes, &err), PS_ENOTABLE);
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), PS_ENOTABLE);
    pull->sections[0].table_id = top; /* has blocks 0 and 1 */
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), PS_ESHARD);
    assert_non_null(strstr(err.text, "top"));
    pull->sections[0].table_id = table;
    pull->sections[0].codec = CODEC_ID_END;
    assert_int_equal(shard_pull_plan(s, pull, sizeof dst, &n_bytes, &err), PS_ECODEC);
    pull->sections[0].codec = CODEC_FP32;
    pull->sections[0].n_keys = 4;
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), PS_ECOUNT);
    pull->sections[0].n_keys = UINT32_MAX;
    assert_int_equal(shard_pull_plan(s, pull, SIZE_MAX, &n_bytes, &err), PS_ECOUNT);
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), PS_ECOUNT);
    pull->sections[0].n_keys = 3;
    bytes_of(pull->sections[0].keys)[2] = 0;
    assert_int_equal(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err), PS_EORDER);
    assert_int_equal(shard_counters(s)->pulls, 0);
    free_pull(pull);
    shard_free(s);
}

static void a_push_needs_a_living_worker_and_its_turn(void **state)
{
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push;

    (void)state;
    enter_shard();
    assert_int_equal(try_push(s, NULL, next_push(w, 0)).status, PS_ENOJOIN);
    push = next_push(w, 0);
    push->seq = 0;
    assert_int_equal(try_push(s, w, push).status, PS_ESEQ);
    push = next_push(w, 0);
    push->seq = 2;
    assert_int_equal(try_push(s, w, push).status, PS_ESEQ);
    push = next_push(w, 0);
    push->seq = UINT64_MAX;
    assert_int_equal(try_push(s, w, push).status, PS_ESEQ);
    assert_int_equal(w->last_seq, 0);
    assert_int_equal(w->clock, 0);
    must_push(s, w, next_push(w, 0));
    w->last_seq = UINT64_MAX; /* nothing comes after the last number, and 0 is no number */
    push = next_push(w, 1);
    assert_int_equal(push->seq, 0);
    assert_int_equal(try_push(s, w, push).status, PS_ESEQ);
    membership_leave(shard_membership(s), w);
    w->last_seq = 1;
    assert_int_equal(try_push(s, w, next_push(w, 1)).status, PS_EFENCED);
    assert_int_equal(shard_counters(s)->pushes_fenced, 1);
    assert_int_equal(shard_counters(s)->pushes, 1);
    shard_free(s);
}

static void a_refusal_is_repeated_to_a_worker_that_missed_it(void **state)
{
    const float values[DIM] = { 0, NAN, 0, 0 };
    const uint64_t key = 7;
    struct shard *s = make_shard(0, 1, 0);
    const struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct shard_push_result result;
    struct push *push;

    (void)state;
    enter_shard();
    must_push(s, w, next_push(w, 0));
    push = next_push(w, 1);
    add_gradient(push, table, DIM, &key, 1, values);
    assert_int_equal(try_push(s, w, push).status, PS_ENAN);
    assert_int_equal(w->refused_seq, 2);
    must_push(s, w, next_push(w, 2));
    for (uint64_t seq = 1; seq <= 3; seq++) {
        push = next_push(w, 0);
        push->seq = seq;
        result = try_push(s, w, push);
        assert_true(result.repeated);
        assert_int_equal(result.status, seq == 2 ? PS_ENAN : 0);
        assert_true(!result.status == !result.text[0]);
    }
    assert_int_equal(shard_counters(s)->pushes_refused, 1);
    assert_int_equal(shard_counters(s)->pushes_repeated, 3);
    assert_ptr_equal(join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1), w); /* a reconnect */
    assert_int_equal(w->refused_status, PS_ENAN);
    join_at(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1, 2, 0); /* somebody new, who counts from 1 */
    assert_int_equal(w->refused_seq, 0);
    shard_free(s);
}

#define GRADIENT_MAX 1e15f

static struct shard *make_limited_shard(bool clips)
{
    const struct shard_config config = { .n_shards = 1,
                                         .lease_ms = LEASE_MS,
                                         .join_ms = JOIN_MS,
                                         .gradient_max = GRADIENT_MAX,
                                         .clip_gradients = clips };

    return shard_new(&config);
}

/* One row of DIM floats, as codec `id` sends it. */
static void add_encoded(struct push *push, uint32_t table, enum codec_id id, uint64_t key,
                        const float *row)
{
    const struct codec *codec = codec_by_id(id);
    struct section *s = &push->sections[push->n_sections];
    float zeros[DIM] = { 0 };

    add_gradient(push, table, DIM, &key, 1, zeros);
    codec->encode(row, DIM, 2, bytes_of(s->values));
    s->codec = id;
    s->k = id == CODEC_TOPK ? 2 : 0;
    s->value_bytes = codec->row_bytes(DIM, 2);
}

static bool are_finite(struct shard *s, uint32_t table, uint64_t key)
{
    float weights[DIM];

    read_weights(s, table, &key, 1, weights);
    for (uint32_t i = 0; i < DIM; i++)
        if (!isfinite(weights[i]))
            return false;
    return true;
}

/* Twice: the squares of the first one are infinite in the state, and NaN in the weights after the second. */
static void push_huge(struct shard *s, struct worker *w, uint32_t table, enum codec_id id,
                      float size, int status)
{
    const float row[DIM] = { 1, size, -size, 2 };

    for (uint64_t i = 0; i < 2; i++) {
        struct push *push = next_push(w, w->last_seq);

        add_encoded(push, table, id, 5, row);
        assert_int_equal(try_push(s, w, push).status, status);
    }
}

static void
a_finite_gradient_that_would_make_weights_infinite_is_refused_and_counted(void **state)
{
    (void)state;
    enter_shard();
    for (uint32_t optim = 0; optim < TABLE_SPEC_OPTIM_END; optim++)
        for (uint32_t id = 0; id < CODEC_ID_END; id++) {
            struct table_spec spec = sparse_spec("emb", DIM, (enum table_spec_optim)optim);
            struct shard *s = make_limited_shard(false);
            uint32_t table = make_table(s, &spec);
            struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);

            if (id != CODEC_FP16) { /* which has no such number */
                push_huge(s, w, table, (enum codec_id)id, 3e38f, PS_ENAN);
                assert_non_null(strstr(shard_last_refusal(s)->text, "gradient-max"));
                assert_int_equal(shard_last_refusal(s)->key, 5);
                assert_int_equal(shard_counters(s)->huge_pushes, 2);
                assert_int_equal(shard_counters(s)->nan_pushes, 0);
            }
            push_huge(s, w, table, (enum codec_id)id, id == CODEC_FP16 ? 65504 : 9e14f, 0);
            assert_true(are_finite(s, table, 5));
            assert_int_equal(shard_counters(s)->rows_clipped, 0);
            shard_free(s);
        }
}

static void it_is_clipped_instead_if_that_is_asked_for(void **state)
{
    static const float sent[DIM] = { 1, 3e38f, -3e38f, -2 };
    static const float want[DIM] = { -1, -GRADIENT_MAX, GRADIENT_MAX, 2 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_limited_shard(true);
    uint32_t table;
    struct worker *w;
    struct push *push;
    uint64_t key = 5;
    float got[DIM];

    (void)state;
    enter_shard();
    spec.params.learning_rate = 1;
    spec.init = TABLE_SPEC_INIT_ZERO;
    table = make_table(s, &spec);
    w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    push = next_push(w, 0);
    add_encoded(push, table, CODEC_FP32, key, sent);
    assert_int_equal(try_push(s, w, push).status, 0);
    read_weights(s, table, &key, 1, got);
    assert_floats_equal(got, want, DIM);
    assert_int_equal(shard_counters(s)->rows_clipped, 1);
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        push_huge(s, w, table, (enum codec_id)id, id == CODEC_FP16 ? 65504 : 3e38f, 0);
    assert_true(are_finite(s, table, 5));
    assert_int_equal(shard_counters(s)->rows_clipped, 1 + 2 * (CODEC_ID_END - 1));
    assert_int_equal(shard_counters(s)->pushes_refused, 0);
    shard_free(s);
}

static void an_assignment_may_be_larger_than_gradients(void **state)
{
    const float row[DIM] = { 1e15f, -1e15f, 0, 1 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_limited_shard(false);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0);

    (void)state;
    enter_shard();
    add_encoded(push, table, CODEC_FP32, 5, row);
    push->sections[0].op = SECTION_ASSIGN;
    assert_int_equal(try_push(s, w, push).status, 0);
    shard_free(s);
}

static void push_rate(struct shard *s, struct worker *w, uint32_t table, float rate,
                      uint32_t n_keys, const char *about)
{
    const uint64_t key = 7;
    const float row[DIM] = { 1 };
    struct push *push = next_push(w, w->clock);
    struct shard_push_result result;

    add_section(push, table, SECTION_RATE, CODEC_FP32, DIM, &key, n_keys, row)->steps =
        section_rate_steps(rate);
    result = try_push(s, w, push);
    assert_true(result.status == (about ? PS_EPROTO : 0));
    if (about && !strstr(result.text, about))
        fail_msg("\"%s\" says nothing of %s", result.text, about);
}

static void a_learning_rate_is_taken_from_the_tables_job_where_training_sets_it(void **state)
{
    struct table_spec spec = sparse_spec("job/emb", DIM, TABLE_SPEC_SGD), again;
    struct shard *s = make_limited_shard(false);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct err err = { 0 };
    struct push *push;
    uint32_t table, fixed, foreign;
    const uint64_t key = 7;
    const float row[DIM] = { 4 };
    float got[DIM];

    (void)state;
    enter_shard();
    fixed = make_table(s, &spec);
    spec = sparse_spec("other/emb", DIM, TABLE_SPEC_SGD);
    spec.schedule =
        (struct lr_schedule){ .decay = TABLE_SPEC_DECAY_PLATEAU, .decay_clocks = 1 };
    foreign = make_table(s, &spec);
    strcpy(spec.name, "job/wide");
    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = 1;
    table = make_table(s, &spec);
    push_rate(s, w, fixed, 0.5f, 0, "its decay is none");
    push_rate(s, w, foreign, 0.5f, 0, "learning rate; only jobs");
    push_rate(s, w, table, 0, 0, "above 0");
    push_rate(s, w, table, -1, 0, "above 0");
    push_rate(s, w, table, NAN, 0, "above 0");
    push_rate(s, w, table, INFINITY, 0, "learning_rate");
    push_rate(s, w, table, 2e6f, 0, "learning_rate");
    push_rate(s, w, table, 0.5f, 1, "no row");
    assert_true(shard_table(s, table)->spec.params.learning_rate == 1);
    push_rate(s, w, table, 0.25f, 0, NULL);
    push = next_push(w, w->clock);
    add_gradient(push, table, DIM, &key, 1, row);
    must_push(s, w, push);
    read_weights(s, table, &key, 1, got);
    assert_true(got[0] == -1);
    again = spec; /* as a worker asks that has been started with the same settings */
    assert_int_equal(shard_table_open(s, &again, false, &fixed, &err), 0);
    assert_int_equal(fixed, table);
    again.schedule.decay = TABLE_SPEC_DECAY_NONE;
    assert_int_equal(shard_table_open(s, &again, false, &fixed, &err), PS_ESPEC);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_push_is_refused_whole_and_uses_up_its_number),
        cmocka_unit_test(a_nan_is_reported_with_its_table_key_and_worker),
        cmocka_unit_test(a_key_of_another_shard_is_refused_by_pull_and_push),
        cmocka_unit_test(a_bad_pull_is_refused_with_a_sentence),
        cmocka_unit_test(a_push_needs_a_living_worker_and_its_turn),
        cmocka_unit_test(a_refusal_is_repeated_to_a_worker_that_missed_it),
        cmocka_unit_test(
            a_finite_gradient_that_would_make_weights_infinite_is_refused_and_counted),
        cmocka_unit_test(it_is_clipped_instead_if_that_is_asked_for),
        cmocka_unit_test(an_assignment_may_be_larger_than_gradients),
        cmocka_unit_test(a_learning_rate_is_taken_from_the_tables_job_where_training_sets_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
