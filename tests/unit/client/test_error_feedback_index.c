/* Rows encoded elsewhere, their residuals kept elsewhere: the pushes are the plain encoder's, byte for byte. */
#include "worker/client/error_feedback_index.h"

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
#include "tests/support/seed.h"
#include "worker/client/push_encoder.h"

#define N_KEYS 300u
#define N_SHARDS 3u
#define DIM_MAX 300u
#define BATCH 40u

/* An encoder: an array of residual rows, and what becomes of it (dlrm_types.h), in plain C. */
struct elsewhere {
    uint32_t dim;
    struct error_feedback index;
    struct error_feedback_index residuals;
    float *rows; /* [index.rows_max][dim] */
    uint8_t *bytes;
    uint32_t numbers[2 * N_KEYS];
};

/* One of each: who has the floats and encodes them, and who gets them encoded. */
struct rig {
    struct push_encoder *plain, *fed;
    struct elsewhere there;
    struct request_set sets[2];
};

struct batch {
    uint64_t keys[BATCH];
    float *grads; /* [BATCH][dim] */
    struct ps_push_section section;
};

static uint32_t rows_of(const struct elsewhere *e)
{
    return e->index.rows_max < N_KEYS ? e->index.rows_max : N_KEYS;
}

static void open_elsewhere(struct elsewhere *e, uint32_t dim, uint64_t max_bytes)
{
    *e = (struct elsewhere){ .dim = dim };
    error_feedback_init_index(&e->index, dim);
    error_feedback_bound(&e->index, max_bytes);
    e->rows = memory_alloc((rows_of(e) + 1) * dim * sizeof *e->rows);
    e->bytes = memory_alloc(N_KEYS * dim * sizeof(float) + N_KEYS);
}

static void close_elsewhere(struct elsewhere *e)
{
    error_feedback_deinit(&e->index);
    error_feedback_index_deinit(&e->residuals);
    free(e->rows);
    free(e->bytes);
}

static void set_up(struct rig *rig, uint32_t dim, enum table_spec_kind kind, uint64_t max_bytes)
{
    struct table_spec spec = { .name = "t", .kind = kind, .dim = dim, .n_floats = 1u << 20 };

    *rig =
        (struct rig){ .plain = push_encoder_new(N_SHARDS), .fed = push_encoder_new(N_SHARDS) };
    push_encoder_bound_residuals(rig->plain, max_bytes);
    push_encoder_bound_residuals(rig->fed, max_bytes);
    assert_int_equal(push_encoder_add_table(rig->plain, 0, &spec), 0);
    assert_int_equal(push_encoder_add_table(rig->fed, 0, &spec), 0);
    for (int i = 0; i < 2; i++) {
        request_set_init(&rig->sets[i], N_SHARDS, 0);
        assert_int_equal(request_set_acquire(&rig->sets[i], 1), 0);
    }
    open_elsewhere(&rig->there, dim, kind == TABLE_SPEC_SPARSE ? max_bytes : 0);
}

static void tear_down(struct rig *rig)
{
    close_elsewhere(&rig->there);
    for (int i = 0; i < 2; i++)
        request_set_deinit(&rig->sets[i]);
    push_encoder_free(rig->plain);
    push_encoder_free(rig->fed);
}

/* Gradients of any size, with zeros of both signs, and in one batch of 16 something that is no number. */
static void make_batch(struct batch *b, uint32_t dim, uint64_t seed, enum codec_id codec)
{
    uint32_t n = 0, key = (uint32_t)(hash_mix(seed) % 9),
             n_most = (uint32_t)(seed % (BATCH + 1));

    for (; n < n_most && key < N_KEYS; n++, key += 1 + (uint32_t)(hash_mix2(seed, n) % 13))
        b->keys[n] = UINT64_C(1000003) * key;
    for (uint32_t i = 0; i < n * dim; i++) {
        uint64_t dice = hash_mix2(seed ^ 77, i);

        b->grads[i] = ldexpf(hash_unit(dice) - 0.5f, (int)(dice >> 60));
        if (dice % 16 == 0)
            b->grads[i] = dice & 16 ? 0.0f : -0.0f;
    }
    if (n && hash_mix(seed) % 16 == 0)
        b->grads[hash_mix(seed ^ 3) % (n * dim)] = hash_mix(seed) & 16 ? NAN : INFINITY;
    b->section = (struct ps_push_section){ .op = SECTION_GRADIENT,
                                           .codec = codec,
                                           .topk_fraction = 0.1f,
                                           .n_keys = n,
                                           .keys = b->keys,
                                           .values = b->grads };
}

static bool is_finite(const float *x, uint32_t n)
{
    bool ret = true;

    for (uint32_t i = 0; i < n; i++)
        ret = ret && isfinite(x[i]);
    return ret;
}

static void put_feedback(struct elsewhere *e, const float *grad, float *row, uint8_t *dst)
{
    const struct codec *codec = codec_by_id(e->residuals.codec);
    float scratch[2 * DIM_MAX];

    if (is_finite(grad, e->dim)) {
        codec_encode_feedback(codec, grad, row, e->dim, e->residuals.k, scratch, dst);
        return;
    }
    for (uint32_t i = 0; i < e->dim; i++)
        scratch[i] = NAN;
    codec->encode(scratch, e->dim, e->residuals.k, dst);
}

static void put_rest(struct elsewhere *e, const float *grad, float *row, uint8_t *dst)
{
    const struct codec *codec = codec_by_id(e->residuals.codec);
    float v[DIM_MAX];

    for (uint32_t i = 0; i < e->dim; i++)
        v[i] = grad && row ? grad[i] + row[i] : grad ? grad[i] : row[i];
    codec->encode(v, e->dim, e->residuals.k, dst);
    if (row)
        memset(row, 0, e->dim * sizeof *row);
}

/* What the device does. */
static void encode(struct elsewhere *e, const float *grads)
{
    const struct error_feedback_index *o = &e->residuals;

    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t from = o->from ? o->from[i] : i, at = o->at ? o->at[i] : ERROR_FEEDBACK_NONE;
        const float *grad = from == ERROR_FEEDBACK_NONE ? NULL : grads + (size_t)from * e->dim;
        float *row = at == ERROR_FEEDBACK_NONE ? NULL : e->rows + (size_t)at * e->dim;

        assert_true(at == ERROR_FEEDBACK_NONE || at < rows_of(e));
        assert_true(grad || row);
        (codec_by_id(o->codec)->feedback ? put_feedback
                                         : put_rest)(e, grad, row, e->bytes + i * o->row_bytes);
    }
}

/* The section as it is pushed when it has been encoded there. */
static int go_through(struct elsewhere *e, const struct batch *b, struct ps_push_section *ret)
{
    struct error_feedback_index *o = &e->residuals;
    int status = error_feedback_index_prepare(o, &e->index, &b->section);

    if (status)
        return status;
    error_feedback_index_acquire(o, &e->index, &b->section, e->numbers);
    encode(e, b->grads);
    *ret = b->section;
    ret->codec = o->codec;
    ret->n_keys = o->n;
    ret->keys = o->keys;
    ret->values = NULL;
    ret->encoded = e->bytes;
    return 0;
}

static void check_push(struct rig *rig, const struct batch *b)
{
    const struct ps_push_section *sections[2] = { &b->section };
    struct push_encoder *encoders[2] = { rig->plain, rig->fed };
    struct ps_push_section there;

    assert_int_equal(go_through(&rig->there, b, &there), 0);
    sections[1] = &there;
    for (int i = 0; i < 2; i++) {
        request_set_release(&rig->sets[i]);
        assert_int_equal(request_set_acquire(&rig->sets[i], 1), 0);
        assert_int_equal(push_encoder_push(encoders[i], sections[i], 1, rig->sets[i].requests),
                         0);
    }
    for (uint32_t j = 0; j < N_SHARDS; j++) {
        const struct section *x = &rig->sets[0].requests[j]->sections[0],
                             *y = &rig->sets[1].requests[j]->sections[0];

        assert_int_equal(x->codec, y->codec);
        assert_int_equal(x->k, y->k);
        assert_int_equal(x->n_keys, y->n_keys);
        assert_int_equal(x->key_bytes, y->key_bytes);
        assert_int_equal(x->value_bytes, y->value_bytes);
        assert_memory_equal(x->keys, y->keys, x->key_bytes);
        assert_memory_equal(x->values, y->values, x->value_bytes);
    }
}

/* The same rows have the same residuals, in the same order, and the encoder's source has none. */
static void check_residuals(struct rig *rig)
{
    const struct error_feedback *x = push_encoder_residual(rig->plain, 0),
                                *y = &rig->there.index;
    uint32_t i, j;

    assert_int_equal(push_encoder_residual(rig->fed, 0)->n_rows, 0);
    assert_int_equal(x->n_rows, y->n_rows);
    for (i = x->oldest, j = y->oldest; i && j; i = x->newer[i - 1], j = y->newer[j - 1]) {
        assert_int_equal(x->keys[i - 1], y->keys[j - 1]);
        assert_memory_equal(x->floats + (size_t)(i - 1) * x->dim,
                            rig->there.rows + (size_t)(j - 1) * y->dim, x->dim * sizeof(float));
    }
    assert_int_equal(i, j);
}

/* As after a restart: the rows in their order, with other numbers. */
static void number_anew(struct elsewhere *e)
{
    struct error_feedback old = e->index;
    float *rows = memory_alloc((rows_of(e) + 1) * e->dim * sizeof *rows);

    error_feedback_init_index(&e->index, e->dim);
    e->index.rows_max = old.rows_max;
    assert_int_equal(error_feedback_reserve(&e->index, old.n_rows), 0);
    for (uint32_t i = old.oldest; i; i = old.newer[i - 1])
        memcpy(rows + (size_t)error_feedback_touch(&e->index, old.keys[i - 1]) * e->dim,
               e->rows + (size_t)(i - 1) * e->dim, e->dim * sizeof *rows);
    error_feedback_deinit(&old);
    free(e->rows);
    e->rows = rows;
}

static uint64_t n_flushed(struct rig *rig)
{
    struct push_encoder_residuals residuals;

    push_encoder_residuals(rig->plain, &residuals);
    return residuals.n_flushed;
}

static uint64_t run(uint64_t seed, uint32_t dim, enum table_spec_kind kind, uint64_t max_bytes)
{
    struct batch b = { .grads = memory_alloc(BATCH * dim * sizeof *b.grads) };
    enum codec_id codec = CODEC_ONEBIT;
    uint64_t n_flushed_rows;
    struct rig rig;

    set_up(&rig, dim, kind, max_bytes);
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t dice = hash_mix2(seed, i);

        if (dice % 8 == 0)
            codec = (enum codec_id)(dice / 8 % CODEC_ID_END);
        else if (dice % 8 < 3)
            codec = dice & 16 ? CODEC_ONEBIT : CODEC_TOPK;
        if (dice % 64 == 63)
            number_anew(&rig.there);
        make_batch(&b, dim, hash_mix2(seed ^ 5, i), codec);
        check_push(&rig, &b);
        check_residuals(&rig);
    }
    n_flushed_rows = n_flushed(&rig);
    tear_down(&rig);
    free(b.grads);
    return n_flushed_rows;
}

static void pushes_are_those_of_the_plain_encoder(void **state)
{
    static const uint32_t dims[] = { 1, 8, 300 };
    const uint64_t seed = seed_of_run(20261122);

    (void)state;
    for (uint32_t i = 0; i < COUNT_OF(dims); i++) {
        /* Bounds below a batch, of some batches, of half the keys, none. */
        for (uint64_t rows = 10; rows < 200; rows = rows * 5 / 2)
            assert_true(run(seed + rows, dims[i], TABLE_SPEC_SPARSE,
                            rows * (dims[i] * 4 + 24) + 512) > 0);
        assert_int_equal(run(seed, dims[i], TABLE_SPEC_SPARSE, 0), 0);
        assert_int_equal(run(seed, dims[i], TABLE_SPEC_DENSE, 600), 0);
    }
}

/* Not even where it would have to make room. */
static void an_encoded_section_leaves_the_tables_residuals_alone(void **state)
{
    static const float grads[4 * 8] = { 1, -2, 3 };
    static const uint64_t keys[] = { 1, 2, 3, 4 };
    struct ps_push_section s = { .op = SECTION_GRADIENT,
                                 .codec = CODEC_TOPK,
                                 .topk_fraction = 0.25f,
                                 .keys = keys,
                                 .values = grads };
    uint8_t bytes[4 * 8 * 2] = { 7 };
    struct push_encoder_residuals residuals;
    struct rig rig;

    (void)state;
    set_up(&rig, 8, TABLE_SPEC_SPARSE, 512 + 3 * (8 * 4 + 16));
    for (uint32_t i = 0; i < 3; i++) {
        s.n_keys = i ? 4 : 3;
        s.encoded = i ? bytes : NULL;
        s.codec = i == 2 ? CODEC_BF16 : CODEC_TOPK;
        assert_int_equal(push_encoder_push(rig.plain, &s, 1, rig.sets[0].requests), 0);
        push_encoder_residuals(rig.plain, &residuals);
        assert_int_equal(residuals.n_rows, 3);
        assert_int_equal(residuals.n_flushed, 0);
    }
    tear_down(&rig);
}

#ifdef PS_FAULTS
/* The k-th allocation of a section's way out fails: no residual has changed. */
static void check_failures(uint64_t seed, enum codec_id codec, bool flushes)
{
    struct batch b = { .grads = memory_alloc(BATCH * 8 * sizeof *b.grads) };
    int status = -1;
    long k;

    for (k = 0; status; k++) {
        struct ps_push_section out;
        struct rig rig;

        set_up(&rig, 8, TABLE_SPEC_SPARSE, 9000);
        for (uint32_t i = 0; i < 1000; i++) {
            make_batch(&b, 8, hash_mix2(seed, i) / 64 * (BATCH + 1) + BATCH, CODEC_ONEBIT);
            if (flushes
                    ? error_feedback_flush_is_due(&rig.there.index, b.keys, b.section.n_keys)
                    : i == 2)
                break;
            check_push(&rig, &b);
        }
        b.section.codec = codec;
        error_feedback_index_deinit(&rig.there.residuals);
        memory_fail_after(k);
        status = go_through(&rig.there, &b, &out);
        memory_fail_after(-1);
        if (status) {
            assert_int_equal(status, -ENOMEM);
            check_residuals(&rig);
            check_push(&rig, &b);
        }
        assert_int_equal(rig.there.residuals.flushes, flushes);
        tear_down(&rig);
    }
    assert_true(k >= (flushes ? 2 : 1));
    free(b.grads);
}

static void a_failed_allocation_changes_no_residual(void **state)
{
    (void)state;
    check_failures(1, CODEC_TOPK, true);
    check_failures(2, CODEC_TOPK, false);
    check_failures(3, CODEC_INT8, false);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushes_are_those_of_the_plain_encoder),
        cmocka_unit_test(an_encoded_section_leaves_the_tables_residuals_alone),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_allocation_changes_no_residual),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
