/* Every build of every codec against the plain one, bit for bit; and check() against decode(). */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/status.h"
#include "proto/codec_catalog.h"

#define DIM_MAX 65536u
#define N_KINDS 7u

static const uint32_t long_dims[] = { 255, 256, 257, 511, 777, 1024, 1025, 4099, DIM_MAX };

static const float corners[] = { 0,           -0.0f,     FLT_MAX,    -FLT_MAX, FLT_MIN,
                                 FLT_MIN / 2, 0x1p-149f, -0x1p-149f, INFINITY, -INFINITY,
                                 NAN,         -NAN,      65504,      65519.9f, 65520,
                                 0x1p-14f,    0x1p-24f,  0x1p-25f,   1,        0.5f,
                                 1.5f,        2.5f,      127,        -127 };

static float of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One value of a row; what kinds there are is what makes corners meet. */
static float value(uint32_t kind, uint64_t h)
{
    float unit = 2 * hash_unit(h) - 1;

    switch (kind) {
    case 0:
        return unit;
    case 1: /* many ties; int8's scale is 1, and quotients are halves or next to them */
        if (h % 13 == 0)
            return 127;
        unit = (float)((int)(h % 255) - 127) * 0.5f;
        return (h >> 20) % 3 ? unit : nextafterf(unit, (h >> 30) % 2 ? 200.0f : -200.0f);
    case 2: /* all sizes */
        return ldexpf(unit, (int)(h % 270) - 150);
    case 3:
        return corners[h % COUNT_OF(corners)];
    case 4: /* rarely a corner */
        return h % 61 == 0 ? corners[(h >> 8) % COUNT_OF(corners)] : unit;
    case 5: /* subnormals, and rows whose int8 scale is one */
        return ldexpf(unit, -127);
    default:
        return of_bits((uint32_t)h);
    }
}

static void random_row(uint64_t seed, uint32_t kind, float *x, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        x[i] = value(kind, hash_mix2(seed, i));
}

static bool is_finite_row(const float *x, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

struct rig {
    float *x, *want, *got;
    uint8_t *want_bytes, *got_bytes; /* exactly the row's, from an odd address on */
};

static void rig_init(struct rig *r, uint32_t dim, size_t row_bytes, size_t offset)
{
    r->x = malloc(dim * sizeof *r->x);
    r->want = malloc(dim * sizeof *r->want);
    r->got = malloc(dim * sizeof *r->got);
    r->want_bytes = (uint8_t *)malloc(offset + row_bytes) + offset;
    r->got_bytes = (uint8_t *)malloc(offset + row_bytes) + offset;
}

static void rig_deinit(struct rig *r, size_t offset)
{
    free(r->x);
    free(r->want);
    free(r->got);
    free(r->want_bytes - offset);
    free(r->got_bytes - offset);
}

/* decode() and check() of r->want_bytes, in both builds. */
static void compare_reading(const struct codec *plain, const struct codec *codec, uint32_t dim,
                            uint32_t k, struct rig *r)
{
    int status = plain->decode(r->want_bytes, dim, k, r->want);

    assert_int_equal(codec->decode(r->want_bytes, dim, k, r->got), status);
    if (status == 0 && memcmp(r->got, r->want, dim * sizeof *r->got) != 0)
        fail_msg("%s: dim %u decodes to other floats", plain->name, dim);
    if (status == 0 && !is_finite_row(r->want, dim))
        status = PS_ENAN;
    assert_int_equal(plain->check(r->want_bytes, dim, k, CODEC_FINITE), status);
    assert_int_equal(codec->check(r->want_bytes, dim, k, CODEC_FINITE), status);
}

static void compare(const struct codec *plain, const struct codec *codec, uint32_t dim,
                    uint32_t kind, uint64_t seed)
{
    const uint32_t k = 1 + (uint32_t)(hash_mix(seed) % dim);
    const size_t row_bytes = plain->row_bytes(dim, k), offset = seed % 5;
    struct rig r;

    rig_init(&r, dim, row_bytes, offset);
    random_row(seed, kind, r.x, dim);
    plain->encode(r.x, dim, k, r.want_bytes);
    codec->encode(r.x, dim, k, r.got_bytes);
    if (memcmp(r.want_bytes, r.got_bytes, row_bytes) != 0)
        fail_msg("%s: dim %u k %u kind %u seed %llu is encoded to other bytes", plain->name,
                 dim, k, kind, (unsigned long long)seed);
    compare_reading(plain, codec, dim, k, &r);
    rig_deinit(&r, offset);
}

static void compare_dim(enum codec_id id, enum simd build, uint32_t dim, uint64_t n_rounds)
{
    for (uint64_t round = 0; round < n_rounds; round++)
        for (uint32_t kind = 0; kind < N_KINDS; kind++)
            compare(codec_build(id, SIMD_PLAIN), codec_build(id, build), dim, kind,
                    (uint64_t)dim * 1000 + round);
}

/* Those that this processor runs. */
static void for_each_build(void (*what)(enum codec_id id, enum simd build))
{
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        for (unsigned build = SIMD_PLAIN; build < SIMD_END; build++)
            if (simd_runs((enum simd)build))
                what((enum codec_id)id, (enum simd)build);
}

static void short_rows(enum codec_id id, enum simd build)
{
    for (uint32_t dim = 1; dim <= 130; dim++)
        compare_dim(id, build, dim, 5);
}

static void long_rows(enum codec_id id, enum simd build)
{
    for (size_t i = 0; i < COUNT_OF(long_dims); i++)
        compare_dim(id, build, long_dims[i], long_dims[i] < 5000 ? 8 : 1);
}

static void any_bytes(enum codec_id id, enum simd build)
{
    const struct codec *plain = codec_build(id, SIMD_PLAIN), *codec = codec_build(id, build);

    for (uint64_t round = 0; round < 3000; round++) {
        uint32_t dim = 1 + (uint32_t)(hash_mix(round) % 130), k = 1 + (uint32_t)(round % dim);
        size_t row_bytes = plain->row_bytes(dim, k), offset = round % 3;
        struct rig r;

        rig_init(&r, dim, row_bytes, offset);
        for (size_t i = 0; i < row_bytes; i++)
            r.want_bytes[i] = (uint8_t)hash_mix2(round, i);
        compare_reading(plain, codec, dim, k, &r);
        rig_deinit(&r, offset);
    }
}

/* A row that was encoded, with one byte of it changed: mistakes that are nearly right. */
static void one_byte_off(enum codec_id id, enum simd build)
{
    const struct codec *plain = codec_build(id, SIMD_PLAIN), *codec = codec_build(id, build);

    for (uint64_t round = 0; round < 3000; round++) {
        uint32_t dim = 1 + (uint32_t)(hash_mix(round) % 130), k = 1 + (uint32_t)(round % dim);
        size_t row_bytes = plain->row_bytes(dim, k);
        struct rig r;

        rig_init(&r, dim, row_bytes, 0);
        random_row(round, 0, r.x, dim);
        plain->encode(r.x, dim, k, r.want_bytes);
        r.want_bytes[hash_mix2(round, 1) % row_bytes] = (uint8_t)(round % 2 ? 0x80 : 0x7f);
        compare_reading(plain, codec, dim, k, &r);
        rig_deinit(&r, 0);
    }
}

/* Where 127 times the scale is infinite and less of it is not, every q counts. */
static void largest_scales(enum codec_id id, enum simd build)
{
    const struct codec *plain = codec_build(id, SIMD_PLAIN), *codec = codec_build(id, build);
    const float scales[] = { FLT_MAX / 127, nextafterf(FLT_MAX / 127, INFINITY),
                             FLT_MAX / 100, -FLT_MAX / 100,
                             FLT_MAX,       INFINITY,
                             -INFINITY,     NAN };

    if (id != CODEC_INT8)
        return;
    for (size_t s = 0; s < COUNT_OF(scales); s++)
        for (uint32_t q = 0; q < 256; q++) {
            struct rig r;

            rig_init(&r, 67, 71, 0);
            memset(r.want_bytes, 0, 71);
            memcpy(r.want_bytes, &scales[s], 4);
            r.want_bytes[4 + q % 67] = (uint8_t)q;
            compare_reading(plain, codec, 67, 0, &r);
            rig_deinit(&r, 0);
        }
}

/* Large at both ends, small in the middle: a selection that guesses from the first ones throws
 * out few at a time. */
static void valleys(enum codec_id id, enum simd build)
{
    const struct codec *plain = codec_build(id, SIMD_PLAIN), *codec = codec_build(id, build);
    const uint32_t dims[] = { 7, 64, 130, 1024, 1500, 5000 };

    if (id != CODEC_TOPK)
        return;
    for (size_t d = 0; d < COUNT_OF(dims); d++) {
        const uint32_t dim = dims[d], ks[] = { 1, 2, dim / 2, dim - 1, dim };

        for (size_t k = 0; k < COUNT_OF(ks); k++) {
            struct rig r;

            rig_init(&r, dim, plain->row_bytes(dim, ks[k]), 0);
            for (uint32_t i = 0; i < dim; i++)
                r.x[i] = (float)dim / 2 - (float)i;
            plain->encode(r.x, dim, ks[k], r.want_bytes);
            codec->encode(r.x, dim, ks[k], r.got_bytes);
            assert_memory_equal(r.got_bytes, r.want_bytes, plain->row_bytes(dim, ks[k]));
            rig_deinit(&r, 0);
        }
    }
}

static void topk_finds_its_values_in_a_valley_too(void **state)
{
    (void)state;
    for_each_build(valleys);
}

static void every_build_gives_the_plain_bytes_and_floats_of_short_rows(void **state)
{
    (void)state;
    for_each_build(short_rows);
}

static void every_build_gives_the_plain_bytes_and_floats_of_long_rows(void **state)
{
    (void)state;
    for_each_build(long_rows);
}

static void every_build_says_the_same_of_any_bytes(void **state)
{
    (void)state;
    for_each_build(any_bytes);
    for_each_build(one_byte_off);
}

static void a_check_knows_which_scales_a_row_of_int8_can_bear(void **state)
{
    (void)state;
    for_each_build(largest_scales);
}

static void
a_check_names_bytes_that_make_no_sense_before_floats_that_are_not_finite(void **state)
{
    uint8_t int8[6] = { 0, 0, 0xc0, 0x7f, 0x80, 1 }; /* scale NaN, and a q of -128 */
    uint8_t onebit[5] = { 0, 0, 0x80, 0x7f, 0x08 };  /* scale infinite, and a bit too many */
    uint8_t topk[12] = { 3, 0, 3, 0, 0, 0, 0x80, 0x7f, 0, 0, 0, 0 };

    (void)state;
    for (unsigned build = SIMD_PLAIN; build < SIMD_END; build++) {
        if (!simd_runs((enum simd)build))
            continue;
        assert_int_equal(
            codec_build(CODEC_INT8, (enum simd)build)->check(int8, 2, 0, CODEC_FINITE),
            PS_ECODEC);
        assert_int_equal(
            codec_build(CODEC_ONEBIT, (enum simd)build)->check(onebit, 3, 0, CODEC_FINITE),
            PS_ECODEC);
        assert_int_equal(
            codec_build(CODEC_ONEBIT, (enum simd)build)->check(onebit, 4, 0, CODEC_FINITE),
            PS_ENAN);
        assert_int_equal(
            codec_build(CODEC_TOPK, (enum simd)build)->check(topk, 8, 2, CODEC_FINITE),
            PS_ECODEC);
        topk[2] = 4;
        assert_int_equal(
            codec_build(CODEC_TOPK, (enum simd)build)->check(topk, 8, 2, CODEC_FINITE),
            PS_ENAN);
        topk[2] = 3;
    }
}

/* No encoder makes one; write-ahead logs may hold them. */
static void a_negative_scale_is_decoded_as_it_is(void **state)
{
    const uint8_t int8[6] = { 0, 0, 0, 0xc0, 3, 0xff }; /* -2, then 3 and -1 */
    const uint8_t onebit[5] = { 0, 0, 0, 0xc0, 1 };     /* -2, then + and - */
    const uint8_t infinite[6] = { 0, 0, 0x80, 0xff, 1, 1 };
    float x[2];

    (void)state;
    for (unsigned build = SIMD_PLAIN; build < SIMD_END; build++) {
        const struct codec *codecs[] = { codec_build(CODEC_INT8, (enum simd)build),
                                         codec_build(CODEC_ONEBIT, (enum simd)build) };

        if (!simd_runs((enum simd)build))
            continue;
        assert_int_equal(codecs[0]->check(int8, 2, 0, CODEC_FINITE), 0);
        assert_int_equal(codecs[0]->decode(int8, 2, 0, x), 0);
        assert_true(x[0] == -6 && x[1] == 2);
        assert_int_equal(codecs[1]->check(onebit, 2, 0, CODEC_FINITE), 0);
        assert_int_equal(codecs[1]->decode(onebit, 2, 0, x), 0);
        assert_true(x[0] == -2 && x[1] == 2);
        for (size_t i = 0; i < COUNT_OF(codecs); i++)
            assert_int_equal(codecs[i]->check(infinite, 2, 0, CODEC_FINITE), PS_ENAN);
    }
}

/* The feedback is the header's formula, in this processor's build. */
static void feedback_keeps_what_was_lost(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        for (uint32_t dim = 1; dim <= 130; dim++) {
            const struct codec *codec = codec_by_id(id);
            float grad[130], residual[130], before[130], scratch[260];
            uint8_t bytes[1000];

            random_row(dim, 4, grad, dim);
            random_row(dim + 1, 0, residual, dim);
            memcpy(before, residual, sizeof before);
            codec_encode_feedback(codec, grad, residual, dim, 1 + dim / 3, scratch, bytes);
            for (uint32_t i = 0; i < dim; i++) {
                float want = grad[i] + before[i], lost = want - scratch[dim + i];

                assert_true(residual[i] == (isfinite(lost) ? lost : 0));
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_build_gives_the_plain_bytes_and_floats_of_short_rows),
        cmocka_unit_test(every_build_gives_the_plain_bytes_and_floats_of_long_rows),
        cmocka_unit_test(topk_finds_its_values_in_a_valley_too),
        cmocka_unit_test(every_build_says_the_same_of_any_bytes),
        cmocka_unit_test(a_check_knows_which_scales_a_row_of_int8_can_bear),
        cmocka_unit_test(a_negative_scale_is_decoded_as_it_is),
        cmocka_unit_test(
            a_check_names_bytes_that_make_no_sense_before_floats_that_are_not_finite),
        cmocka_unit_test(feedback_keeps_what_was_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
