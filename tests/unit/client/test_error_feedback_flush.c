/* Residuals under a bound: sent values and residuals add up to the gradients. */
#include "worker/client/error_feedback_flush.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "worker/client/push_encoder.h"

#define N_KEYS 400u
#define N_SHARDS 3u
#define DIM 8u
#define BATCH 40u

struct rig {
    struct push_encoder *e;
    struct request_set set;
    double given[N_KEYS][DIM], sent[N_KEYS][DIM];
};

static struct rig *set_up(uint64_t max_bytes)
{
    struct table_spec spec = { .name = "emb", .kind = TABLE_SPEC_SPARSE, .dim = DIM };
    struct rig *rig = memory_alloc(sizeof *rig);

    rig->e = push_encoder_new(N_SHARDS);
    request_set_init(&rig->set, N_SHARDS, 0);
    assert_int_equal(request_set_acquire(&rig->set, 1), 0);
    push_encoder_bound_residuals(rig->e, max_bytes);
    assert_int_equal(push_encoder_add_table(rig->e, 0, &spec), 0);
    return rig;
}

static void tear_down(struct rig *rig)
{
    request_set_deinit(&rig->set);
    push_encoder_free(rig->e);
    free(rig);
}

/* Key i of the reference's arrays. */
static uint64_t key_of(uint32_t i)
{
    return UINT64_C(1000003) * i;
}

struct step {
    uint64_t keys[BATCH];
    float grads[BATCH * DIM];
    struct ps_push_section section;
};

/* Some ascending keys with small whole numbers, which fp32 adds without rounding. */
static void make_step(struct step *s, uint64_t seed, enum codec_id codec)
{
    uint32_t n = 0, i = (uint32_t)(hash_mix(seed) % 20);

    for (; n < BATCH && i < N_KEYS; n++, i += 1 + (uint32_t)(hash_mix2(seed, n) % 19))
        s->keys[n] = key_of(i);
    for (i = 0; i < n * DIM; i++)
        s->grads[i] = (float)(int)(hash_mix2(seed ^ 77, i) % 17) - 8;
    s->section = (struct ps_push_section){
        .codec = codec, .topk_fraction = 0.25f, .n_keys = n, .keys = s->keys, .values = s->grads
    };
}

/* Adds what one shard gets to rig->sent. */
static void receive(struct rig *rig, const struct section *s)
{
    const struct codec *codec = codec_by_id(s->codec);
    size_t row_bytes = codec->row_bytes(DIM, s->k);
    uint64_t keys[N_KEYS];
    float row[DIM];

    assert_true(s->n_keys <= N_KEYS);
    assert_int_equal(key_codec_decode(s->keys, s->key_bytes, s->n_keys, keys), 0);
    assert_int_equal(s->value_bytes, s->n_keys * row_bytes);
    for (uint32_t i = 0; i < s->n_keys; i++) {
        assert_int_equal(codec->decode(s->values + i * row_bytes, DIM, s->k, row), 0);
        for (uint32_t j = 0; j < DIM; j++)
            rig->sent[keys[i] / 1000003][j] += (double)row[j];
    }
}

static int push(struct rig *rig, const struct step *s)
{
    int status;

    request_set_release(&rig->set);
    assert_int_equal(request_set_acquire(&rig->set, 1), 0);
    status = push_encoder_push(rig->e, &s->section, 1, rig->set.requests);
    if (status)
        return status;
    for (uint32_t i = 0; i < N_SHARDS; i++)
        receive(rig, &rig->set.requests[i]->sections[0]);
    for (uint32_t i = 0; i < s->section.n_keys; i++)
        for (uint32_t j = 0; j < DIM; j++)
            rig->given[s->keys[i] / 1000003][j] += (double)s->grads[i * DIM + j];
    return 0;
}

/* The largest difference between the gradients and the sent values with the residuals. */
static double difference(struct rig *rig)
{
    const struct error_feedback *r = push_encoder_residual(rig->e, 0);
    double worst = 0;

    for (uint32_t i = 0; i < N_KEYS; i++) {
        const float *residuals = error_feedback_find(r, key_of(i));

        for (uint32_t j = 0; j < DIM; j++)
            worst = fmax(worst, fabs(rig->sent[i][j] + (residuals ? (double)residuals[j] : 0) -
                                     rig->given[i][j]));
    }
    return worst;
}

static void check_run(uint64_t seed, uint64_t max_bytes, const enum codec_id *codecs,
                      uint32_t n_codecs, double tolerance)
{
    struct rig *rig = set_up(max_bytes);
    struct push_encoder_residuals residuals;
    struct step s;

    for (uint32_t i = 0; i < 300; i++) {
        make_step(&s, hash_mix2(seed, i), codecs[hash_mix2(seed ^ 5, i) % n_codecs]);
        assert_int_equal(push(rig, &s), 0);
        push_encoder_residuals(rig->e, &residuals);
        assert_true(residuals.n_bytes <= max_bytes);
        assert_true(difference(rig) <= tolerance);
    }
    assert_true(residuals.n_flushed > 0);
    tear_down(rig);
}

static void sent_values_plus_residuals_are_the_gradients_under_any_bound(void **state)
{
    static const enum codec_id topk[] = { CODEC_TOPK }, onebit[] = { CODEC_ONEBIT },
                               mixed[] = { CODEC_TOPK, CODEC_FP32, CODEC_TOPK };
    static const uint64_t bounds[] = { 3000, 6000, 9000 };
    uint64_t seed = 20261121;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < COUNT_OF(bounds); i++) {
        check_run(seed + i, bounds[i], topk, COUNT_OF(topk), 0);
        check_run(seed + i, bounds[i], mixed, COUNT_OF(mixed), 0);
        /* 300 pushes, each rounded once, of sums below 32. */
        check_run(seed + i, bounds[i], onebit, COUNT_OF(onebit), 300 * 32 * 0x1p-24);
    }
}

/* Which rows go is the batches' doing, not the shards': one encoder for each number of them. */
static void residuals_do_not_depend_on_the_number_of_shards(void **state)
{
    struct table_spec spec = { .name = "emb", .kind = TABLE_SPEC_SPARSE, .dim = DIM };
    struct push_encoder *e[2] = { push_encoder_new(1), push_encoder_new(N_SHARDS) };
    struct request_set set = { 0 };
    struct push_encoder_residuals residuals[2];
    struct step s;

    (void)state;
    request_set_init(&set, N_SHARDS, 0);
    for (int j = 0; j < 2; j++) {
        push_encoder_bound_residuals(e[j], 9000);
        assert_int_equal(push_encoder_add_table(e[j], 0, &spec), 0);
    }
    for (uint32_t i = 0; i < 200; i++) {
        make_step(&s, i, CODEC_TOPK);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(request_set_acquire(&set, 1), 0);
            assert_int_equal(push_encoder_push(e[j], &s.section, 1, set.requests), 0);
            push_encoder_residuals(e[j], &residuals[j]);
            request_set_release(&set);
        }
        assert_memory_equal(&residuals[0], &residuals[1], sizeof residuals[0]);
        for (uint32_t k = 0; k < N_KEYS; k++)
            assert_int_equal(
                error_feedback_find(push_encoder_residual(e[0], 0), key_of(k)) != NULL,
                error_feedback_find(push_encoder_residual(e[1], 0), key_of(k)) != NULL);
    }
    assert_true(residuals[0].n_flushed > 0);
    push_encoder_free(e[0]);
    push_encoder_free(e[1]);
    request_set_deinit(&set);
}

static void the_oldest_residuals_go_first_and_make_space_for_many_pushes(void **state)
{
    struct rig *rig = set_up(9000);
    const struct error_feedback *r = push_encoder_residual(rig->e, 0);
    struct step s = { 0 };
    uint32_t n_due = 0;

    (void)state;
    for (uint32_t i = 0; i < N_KEYS; i++) {
        s.keys[0] = key_of(i);
        for (uint32_t j = 0; j < DIM; j++)
            s.grads[j] = (float)j;
        s.section = (struct ps_push_section){ .codec = CODEC_TOPK,
                                              .topk_fraction = 0.25f,
                                              .n_keys = 1,
                                              .keys = s.keys,
                                              .values = s.grads };
        n_due += error_feedback_flush_is_due(r, s.section.keys, s.section.n_keys);
        assert_int_equal(push(rig, &s), 0);
    }
    assert_null(error_feedback_find(r, key_of(0)));
    assert_non_null(error_feedback_find(r, key_of(N_KEYS - 1)));
    assert_true(n_due > 2 && n_due < N_KEYS / 10);
    assert_true(difference(rig) == 0);
    tear_down(rig);
}

/* More keys in one push than residuals may be kept: every push goes out in full. */
static void a_bound_below_one_batch_sends_all_in_full(void **state)
{
    struct rig *rig = set_up(600);
    struct push_encoder_residuals residuals;
    struct step s;

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        make_step(&s, i, CODEC_ONEBIT);
        assert_int_equal(push(rig, &s), 0);
        push_encoder_residuals(rig->e, &residuals);
        assert_int_equal(residuals.n_rows, 0);
        assert_true(difference(rig) == 0);
    }
    tear_down(rig);
}

static void blocks_of_dense_tables_keep_theirs_whatever_the_bound(void **state)
{
    struct table_spec spec = {
        .name = "top", .kind = TABLE_SPEC_DENSE, .dim = DIM, .n_floats = 100 * DIM
    };
    struct push_encoder *e = push_encoder_new(1);

    (void)state;
    push_encoder_bound_residuals(e, 600);
    assert_int_equal(push_encoder_add_table(e, 0, &spec), 0);
    assert_true(push_encoder_residual(e, 0)->rows_max > 1000000);
    push_encoder_free(e);
}

#ifdef PS_FAULTS
/* Every allocation of a push that must flush fails once: it changes no residual. */
static void a_failed_push_in_full_changes_no_residual(void **state)
{
    struct step s;
    int status = -1;
    long k;

    (void)state;
    for (k = 0; status; k++) {
        struct rig *rig = set_up(9000);
        struct push_encoder_residuals before, after;

        for (uint32_t i = 0; i < 1000; i++) {
            make_step(&s, i, CODEC_TOPK);
            if (error_feedback_flush_is_due(push_encoder_residual(rig->e, 0), s.section.keys,
                                            s.section.n_keys))
                break;
            assert_int_equal(push(rig, &s), 0);
        }
        push_encoder_residuals(rig->e, &before);
        memory_fail_after(k);
        status = push_encoder_push(rig->e, &s.section, 1, rig->set.requests);
        memory_fail_after(-1);
        push_encoder_residuals(rig->e, &after);
        if (status) {
            assert_int_equal(status, -ENOMEM);
            assert_int_equal(after.n_rows, before.n_rows);
            assert_int_equal(after.n_flushed, 0);
            assert_true(difference(rig) == 0);
            assert_int_equal(push(rig, &s), 0);
            assert_true(difference(rig) == 0);
        } else {
            assert_true(after.n_flushed > 0);
        }
        tear_down(rig);
    }
    assert_true(k > 3);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sent_values_plus_residuals_are_the_gradients_under_any_bound),
        cmocka_unit_test(residuals_do_not_depend_on_the_number_of_shards),
        cmocka_unit_test(the_oldest_residuals_go_first_and_make_space_for_many_pushes),
        cmocka_unit_test(a_bound_below_one_batch_sends_all_in_full),
        cmocka_unit_test(blocks_of_dense_tables_keep_theirs_whatever_the_bound),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_push_in_full_changes_no_residual),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
