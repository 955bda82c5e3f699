#include "worker/client/push_encoder.h"

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
#include "proto/placement.h"

#define N_SHARDS_MAX 7u
#define N_KEYS_MAX 300u
#define DIM_MAX 40u
#define N_SECTIONS 2u

static struct table_spec make_spec(const char *name, uint32_t dim, enum table_spec_kind kind)
{
    struct table_spec spec = { .kind = kind, .dim = dim };

    snprintf(spec.name, sizeof spec.name, "%s", name);
    if (kind == TABLE_SPEC_DENSE)
        spec.n_floats = (uint64_t)dim * 100;
    return spec;
}

/* One encoder, and the requests that it fills. */
struct rig {
    uint32_t n_shards;
    struct push_encoder *e;
    struct request_set push, pull;
    struct partition partition; /* of the pull */
};

/* Empty requests. */
static void clear(struct rig *rig)
{
    request_set_release(&rig->push);
    request_set_release(&rig->pull);
    assert_int_equal(request_set_acquire(&rig->push, N_SECTIONS), 0);
    assert_int_equal(request_set_acquire(&rig->pull, N_SECTIONS), 0);
}

static void set_up(struct rig *rig, uint32_t n_shards, const struct table_spec *specs,
                   uint32_t n_specs)
{
    uint32_t i;

    *rig = (struct rig){ .n_shards = n_shards, .e = push_encoder_new(n_shards) };
    request_set_init(&rig->push, n_shards, 0);
    request_set_init(&rig->pull, n_shards, 0);
    partition_init(&rig->partition, n_shards);
    clear(rig);
    for (i = 0; i < n_specs; i++)
        assert_int_equal(push_encoder_add_table(rig->e, i, &specs[i]), 0);
}

static void tear_down(struct rig *rig)
{
    push_encoder_free(rig->e);
    request_set_deinit(&rig->push);
    request_set_deinit(&rig->pull);
    partition_deinit(&rig->partition);
}

/* Ascending keys with small and large gaps. */
static uint32_t make_keys(uint64_t seed, uint64_t *keys)
{
    uint32_t n = (uint32_t)(hash_mix(seed) % N_KEYS_MAX), i;
    uint64_t key = hash_mix(seed ^ 1) >> 8;

    for (i = 0; i < n; i++) {
        keys[i] = key;
        key +=
            1 + (hash_mix2(seed, i) >> (hash_mix2(seed, i + 1000000) % 44 + 20)) / N_KEYS_MAX;
    }
    return n;
}

static void make_values(uint64_t seed, float *values, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        values[i] = hash_unit(hash_mix2(seed, i)) - 0.5f;
}

/* What one shard got of a section: the bytes of the row of `key`, or NULL. */
static const uint8_t *find_row(const struct section *s, uint64_t key, size_t row_bytes)
{
    uint64_t keys[N_KEYS_MAX];
    uint32_t i;

    assert_int_equal(key_codec_decode(s->keys, s->key_bytes, s->n_keys, keys), 0);
    assert_int_equal(s->value_bytes, s->n_keys * row_bytes);
    for (i = 0; i < s->n_keys; i++)
        if (keys[i] == key)
            return s->values + i * row_bytes;
    return NULL;
}

/* The reference: each row encoded by itself, residuals in a plain array. */
static void check_push(const struct rig *rig, const struct ps_push_section *s, uint32_t index,
                       uint32_t dim, uint64_t salt, uint32_t k, float (*residuals)[DIM_MAX])
{
    const struct codec *codec = codec_by_id(s->op == SECTION_ASSIGN ? CODEC_FP32 : s->codec);
    uint8_t want[4 * DIM_MAX * 2 + 64];
    float scratch[2 * DIM_MAX];
    uint32_t i, shard, n = 0;
    const uint8_t *have;

    for (shard = 0; shard < rig->n_shards; shard++) {
        n += rig->push.requests[shard]->sections[index].n_keys;
        assert_int_equal(rig->push.requests[shard]->sections[index].codec, codec->id);
        assert_int_equal(rig->push.requests[shard]->sections[index].k, k);
    }
    assert_int_equal(n, s->n_keys);
    for (i = 0; i < s->n_keys; i++) {
        if (codec->feedback)
            codec_encode_feedback(codec, s->values + (size_t)i * dim, residuals[i], dim, k,
                                  scratch, want);
        else
            codec->encode(s->values + (size_t)i * dim, dim, k, want);
        shard = placement_shard(s->keys[i], salt, rig->n_shards);
        have = find_row(&rig->push.requests[shard]->sections[index], s->keys[i],
                        codec->row_bytes(dim, k));
        assert_non_null(have);
        assert_memory_equal(have, want, codec->row_bytes(dim, k));
    }
}

static void a_push_equals_rows_encoded_one_by_one_on_any_number_of_shards(void **state)
{
    static float residuals[2][N_KEYS_MAX][DIM_MAX];
    const struct table_spec specs[] = { make_spec("emb", 33, TABLE_SPEC_SPARSE),
                                        make_spec("top", 40, TABLE_SPEC_DENSE) };
    float *values[2] = { memory_alloc(N_KEYS_MAX * DIM_MAX * sizeof(float)),
                         memory_alloc(N_KEYS_MAX * DIM_MAX * sizeof(float)) };
    uint64_t keys[2][N_KEYS_MAX];
    struct ps_push_section s[2] = { { .table = 0, .topk_fraction = 0.1f },
                                    { .table = 1, .topk_fraction = 0.1f } };
    uint32_t n_shards, codec, round, t;
    struct rig rig;

    (void)state;
    for (n_shards = 1; n_shards <= N_SHARDS_MAX; n_shards++) {
        for (codec = 0; codec < CODEC_ID_END; codec++) {
            set_up(&rig, n_shards, specs, 2);
            memset(residuals, 0, sizeof residuals);
            for (round = 0; round < 3; round++) {
                for (t = 0; t < 2; t++) {
                    s[t].n_keys = make_keys(codec * 2 + t, keys[t]);
                    s[t].keys = keys[t];
                    s[t].codec = (enum codec_id)codec;
                    make_values(hash_mix2(round, t), values[t],
                                (size_t)s[t].n_keys * specs[t].dim);
                    s[t].values = values[t];
                }
                assert_int_equal(push_encoder_push(rig.e, s, 2, rig.push.requests), 0);
                check_push(&rig, &s[0], 0, 33, table_spec_salt(&specs[0]),
                           codec == CODEC_TOPK ? 3 : 0, residuals[0]);
                check_push(&rig, &s[1], 1, 40, table_spec_salt(&specs[1]),
                           codec == CODEC_TOPK ? 4 : 0, residuals[1]);
                clear(&rig);
            }
            tear_down(&rig);
        }
    }
    free(values[0]);
    free(values[1]);
}

static void an_empty_section_is_sent_to_every_shard(void **state)
{
    const struct table_spec spec = make_spec("emb", 4, TABLE_SPEC_SPARSE);
    const struct ps_push_section push = { .table = 0 };
    const struct ps_pull_section pull = { .table = 0 };
    struct rig rig;
    uint32_t i;

    (void)state;
    set_up(&rig, 3, &spec, 1);
    assert_int_equal(push_encoder_push(rig.e, &push, 1, rig.push.requests), 0);
    assert_int_equal(push_encoder_pull(rig.e, &pull, 1, &rig.partition, rig.pull.requests), 0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(rig.push.requests[i]->n_sections, 1);
        assert_int_equal(rig.push.requests[i]->sections[0].n_keys, 0);
        assert_non_null(rig.push.requests[i]->sections[0].keys);
        assert_int_equal(rig.pull.requests[i]->n_sections, 1);
        assert_int_equal(rig.pull.requests[i]->sections[0].n_keys, 0);
    }
    tear_down(&rig);
}

static void push_one(struct rig *rig, enum section_op op, enum codec_id codec, uint64_t key,
                     const float *values)
{
    const struct ps_push_section s = { .table = 0,
                                       .op = op,
                                       .codec = codec,
                                       .topk_fraction = 0.25f,
                                       .n_keys = 1,
                                       .keys = &key,
                                       .values = values };

    clear(rig);
    assert_int_equal(push_encoder_push(rig->e, &s, 1, rig->push.requests), 0);
}

static void assigning_a_row_drops_its_residual(void **state)
{
    const struct table_spec spec = make_spec("emb", 4, TABLE_SPEC_SPARSE);
    const float grad[4] = { 4, 3, 2, 1 };
    float sent[4];
    struct push_encoder_residuals residuals;
    struct rig rig;

    (void)state;
    set_up(&rig, 1, &spec, 1);
    push_one(&rig, SECTION_GRADIENT, CODEC_TOPK, 5, grad); /* sends the 4; residuals 3 2 1 */
    push_one(&rig, SECTION_GRADIENT, CODEC_TOPK, 5, (float[4]){ 0 }); /* sends the 3 */
    assert_int_equal(codec_topk.decode(rig.push.requests[0]->sections[0].values, 4, 1, sent),
                     0);
    assert_memory_equal(sent, ((float[4]){ 0, 3, 0, 0 }), sizeof sent);
    push_encoder_residuals(rig.e, &residuals);
    assert_int_equal(residuals.n_rows, 1);
    push_one(&rig, SECTION_ASSIGN, CODEC_TOPK, 5, grad);
    assert_int_equal(rig.push.requests[0]->sections[0].codec, CODEC_FP32);
    assert_int_equal(rig.push.requests[0]->sections[0].op, SECTION_ASSIGN);
    assert_memory_equal(rig.push.requests[0]->sections[0].values, grad, sizeof grad);
    push_encoder_residuals(rig.e, &residuals);
    assert_int_equal(residuals.n_rows, 0);
    push_one(&rig, SECTION_GRADIENT, CODEC_TOPK, 5, (float[4]){ 0.5f });
    assert_int_equal(codec_topk.decode(rig.push.requests[0]->sections[0].values, 4, 1, sent),
                     0);
    assert_memory_equal(sent, ((float[4]){ 0.5f, 0, 0, 0 }), sizeof sent);
    tear_down(&rig);
}

/* With residuals or without; where the residuals are flushed, rows come of which the weights are not known. */
static void the_weights_of_a_gradient_go_behind_it(void **state)
{
    enum { DIM = 4, N_KEYS = 9, N_SHARDS = 3 };
    const struct table_spec spec = make_spec("emb", DIM, TABLE_SPEC_SPARSE);
    float values[N_KEYS * DIM], then[N_KEYS * DIM];
    uint64_t keys[N_KEYS];
    const struct section_delay delay = { .lambda = 0.5f, .constant = true };
    struct ps_push_section s = { .op = SECTION_GRADIENT_AT,
                                 .n_keys = N_KEYS,
                                 .keys = keys,
                                 .values = values,
                                 .then = then,
                                 .steps = section_delay_steps(delay) };
    struct rig rig;

    (void)state;
    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = i * i;
    make_values(1, values, COUNT_OF(values));
    make_values(2, then, COUNT_OF(then));
    for (uint32_t codec = 0; codec < CODEC_TOPK; codec++) {
        const size_t gradient_bytes = codec_by_id(codec)->row_bytes(DIM, 0);

        set_up(&rig, N_SHARDS, &spec, 1);
        s.codec = (enum codec_id)codec;
        assert_int_equal(push_encoder_push(rig.e, &s, 1, rig.push.requests), 0);
        for (uint32_t i = 0; i < N_KEYS; i++) {
            const uint32_t shard = placement_shard(keys[i], table_spec_salt(&spec), N_SHARDS);
            const struct section *sent = &rig.push.requests[shard]->sections[0];
            const uint8_t *row = find_row(sent, keys[i], gradient_bytes + DIM * sizeof *then);

            assert_non_null(row);
            assert_memory_equal(row + gradient_bytes, then + i * DIM, DIM * sizeof *then);
            assert_int_equal(sent->op, SECTION_GRADIENT_AT);
            assert_int_equal(sent->steps, s.steps);
        }
        clear(&rig);
        if (codec_by_id(codec)->feedback) {
            push_encoder_bound_residuals(rig.e, 1);
            for (uint32_t i = 0; i < N_KEYS; i++)
                keys[i]++;
            assert_int_equal(push_encoder_push(rig.e, &s, 1, rig.push.requests), 0);
            assert_int_equal(rig.push.requests[0]->sections[0].op, SECTION_GRADIENT);
            assert_int_equal(rig.push.requests[0]->sections[0].steps, 0);
            assert_int_equal(rig.push.requests[0]->sections[0].codec, CODEC_FP32);
        }
        tear_down(&rig);
    }
}

static void nan_is_sent_on_for_the_server_to_refuse_and_does_not_stay(void **state)
{
    const struct table_spec spec = make_spec("emb", 4, TABLE_SPEC_SPARSE);
    static const enum codec_id feedback[] = { CODEC_ONEBIT, CODEC_TOPK };
    float sent[4], bad[4] = { 9, 1, NAN, 0 };
    struct rig rig;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(feedback); i++) {
        set_up(&rig, 1, &spec, 1);
        push_one(&rig, SECTION_GRADIENT, feedback[i], 5, bad);
        assert_int_equal(codec_by_id(feedback[i])
                             ->decode(rig.push.requests[0]->sections[0].values, 4, 1, sent),
                         0);
        assert_true(isnan(sent[0]) || isnan(sent[1]) || isnan(sent[2]) || isnan(sent[3]));
        push_one(&rig, SECTION_GRADIENT, feedback[i], 5, (float[4]){ 1, 1, 1, 1 });
        assert_int_equal(codec_by_id(feedback[i])
                             ->decode(rig.push.requests[0]->sections[0].values, 4, 1, sent),
                         0);
        assert_true(sent[0] == 1.0f);
        tear_down(&rig);
    }
}

static void what_shards_answer_lands_where_it_was_asked_for(void **state)
{
    const struct table_spec spec = make_spec("emb", 33, TABLE_SPEC_SPARSE);
    float *dst = memory_alloc(N_KEYS_MAX * 33 * sizeof *dst), row[33];
    uint8_t *bytes = memory_alloc(N_KEYS_MAX * 33 * sizeof *dst);
    uint64_t keys[N_KEYS_MAX], got[N_KEYS_MAX];
    struct ps_pull_section s = { .table = 0, .keys = keys, .dst = dst };
    uint32_t n_shards, shard, i;
    const uint8_t *values = bytes;
    const struct section *asked;
    size_t value_bytes;
    struct rig rig;

    (void)state;
    for (n_shards = 1; n_shards <= N_SHARDS_MAX; n_shards++) {
        set_up(&rig, n_shards, &spec, 1);
        s.n_keys = make_keys(n_shards + 50, keys);
        assert_int_equal(push_encoder_pull(rig.e, &s, 1, &rig.partition, rig.pull.requests), 0);
        for (shard = n_shards; shard-- > 0;) {
            asked = &rig.pull.requests[shard]->sections[0];
            assert_int_equal(
                key_codec_decode(asked->keys, asked->key_bytes, asked->n_keys, got), 0);
            for (i = 0; i < asked->n_keys; i++) {
                make_values(got[i], row, 33);
                codec_fp32.encode(row, 33, 0, bytes + i * sizeof row);
            }
            value_bytes = asked->n_keys * sizeof row + 1;
            assert_int_equal(
                push_encoder_pulled(rig.e, &s, 1, &rig.partition, shard, &values, &value_bytes),
                PS_ECOUNT);
            value_bytes--;
            assert_int_equal(
                push_encoder_pulled(rig.e, &s, 1, &rig.partition, shard, &values, &value_bytes),
                0);
        }
        for (i = 0; i < s.n_keys; i++) {
            make_values(keys[i], row, 33);
            assert_memory_equal(dst + (size_t)i * 33, row, sizeof row);
        }
        s.codec = CODEC_TOPK;
        assert_int_equal(push_encoder_pull(rig.e, &s, 1, &rig.partition, rig.pull.requests),
                         PS_ECODEC);
        s.codec = CODEC_FP32;
        tear_down(&rig);
    }
    free(bytes);
    free(dst);
}

/* Bits come in the order of each shard's keys, and go into that of all. */
static void which_keys_have_a_row_is_put_together_from_all_shards(void **state)
{
    const struct table_spec spec = make_spec("emb", 1, TABLE_SPEC_SPARSE);
    float dst[N_KEYS_MAX];
    uint8_t present[N_KEYS_MAX / 8 + 1], bytes[N_KEYS_MAX * 4 + N_KEYS_MAX / 8 + 1];
    uint64_t keys[N_KEYS_MAX], got[N_KEYS_MAX];
    struct ps_pull_section s = { .keys = keys, .dst = dst, .present = present };
    const uint8_t *values = bytes;
    size_t value_bytes;
    struct rig rig;

    (void)state;
    set_up(&rig, 3, &spec, 1);
    s.n_keys = make_keys(77, keys);
    memset(present, 0xa5, sizeof present);
    assert_int_equal(push_encoder_pull(rig.e, &s, 1, &rig.partition, rig.pull.requests), 0);
    for (uint32_t shard = 0; shard < 3; shard++) {
        const struct section *asked = &rig.pull.requests[shard]->sections[0];
        uint8_t *bits = bytes + asked->n_keys * 4;

        assert_true(asked->present);
        assert_int_equal(key_codec_decode(asked->keys, asked->key_bytes, asked->n_keys, got),
                         0);
        memset(bytes, 0, sizeof bytes);
        for (uint32_t i = 0; i < asked->n_keys; i++)
            if (hash_mix(got[i]) % 2)
                bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << i % 8);
        value_bytes = asked->n_keys * 4;
        assert_int_equal(
            push_encoder_pulled(rig.e, &s, 1, &rig.partition, shard, &values, &value_bytes),
            asked->n_keys ? PS_ECOUNT : 0);
        value_bytes += section_present_bytes(asked->n_keys);
        assert_int_equal(
            push_encoder_pulled(rig.e, &s, 1, &rig.partition, shard, &values, &value_bytes), 0);
    }
    for (uint32_t i = 0; i < section_present_bytes(s.n_keys) * 8; i++)
        assert_int_equal(present[i / 8] >> i % 8 & 1, i < s.n_keys && hash_mix(keys[i]) % 2);
    tear_down(&rig);
}

#ifdef PS_FAULTS
static void a_pull_without_memory_is_refused(void **state)
{
    const struct table_spec spec = make_spec("emb", 8, TABLE_SPEC_SPARSE);
    uint64_t keys[N_KEYS_MAX];
    struct ps_pull_section s = { .keys = keys };
    struct rig rig;
    int status = -1;
    long k;

    (void)state;
    s.n_keys = make_keys(3, keys);
    for (k = 0; status; k++) {
        set_up(&rig, 3, &spec, 1);
        memory_fail_after(k);
        status = push_encoder_pull(rig.e, &s, 1, &rig.partition, rig.pull.requests);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        tear_down(&rig);
    }
    assert_true(k > 4);
}

/* Every allocation fails once: the push that failed changes no residual. */
static void a_failed_push_changes_no_residual(void **state)
{
    const struct table_spec spec = make_spec("emb", 8, TABLE_SPEC_SPARSE);
    float residuals[N_KEYS_MAX][DIM_MAX] = { 0 },
          *values = memory_alloc(N_KEYS_MAX * 8 * sizeof *values);
    uint64_t keys[N_KEYS_MAX];
    struct ps_push_section s = { .codec = CODEC_ONEBIT, .keys = keys, .values = values };
    struct rig rig;
    long k;
    int status = -1;

    (void)state;
    s.n_keys = make_keys(3, keys);
    make_values(4, values, (size_t)s.n_keys * 8);
    for (k = 0; status; k++) {
        memset(residuals, 0, sizeof residuals);
        set_up(&rig, 3, &spec, 1);
        memory_fail_after(k);
        status = push_encoder_push(rig.e, &s, 1, rig.push.requests);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        clear(&rig);
        if (status) {
            assert_int_equal(push_encoder_push(rig.e, &s, 1, rig.push.requests), 0);
            check_push(&rig, &s, 0, 8, 0, 0, residuals);
        }
        tear_down(&rig);
    }
    assert_true(k > 8);
    free(values);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_equals_rows_encoded_one_by_one_on_any_number_of_shards),
        cmocka_unit_test(an_empty_section_is_sent_to_every_shard),
        cmocka_unit_test(assigning_a_row_drops_its_residual),
        cmocka_unit_test(the_weights_of_a_gradient_go_behind_it),
        cmocka_unit_test(nan_is_sent_on_for_the_server_to_refuse_and_does_not_stay),
        cmocka_unit_test(what_shards_answer_lands_where_it_was_asked_for),
        cmocka_unit_test(which_keys_have_a_row_is_put_together_from_all_shards),
#ifdef PS_FAULTS
        cmocka_unit_test(a_pull_without_memory_is_refused),
        cmocka_unit_test(a_failed_push_changes_no_residual),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
