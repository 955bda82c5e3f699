/* Rows' weights in halves: every bit pattern, the odds of rounding, and every build alike. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "proto/codec_catalog.h"
#include "server/core/weights.h"

#define ROW 64u
#define N_NOISES 2000u

struct format {
    enum table_spec_storage storage;
    enum codec_id codec;
    uint32_t n_finite; /* codes 0 to n_finite - 1 are the finite ones of +, ascending */
};

static const struct format formats[] = { { TABLE_SPEC_BF16, CODEC_BF16, 0x7f80 },
                                         { TABLE_SPEC_FP16, CODEC_FP16, 0x7c00 } };

static float of_code(const struct format *f, uint32_t code)
{
    uint16_t half = (uint16_t)code;
    float value;

    weights_load(f->storage, &half, 1, &value);
    return value;
}

static uint32_t stored(const struct format *f, float value, uint64_t noise)
{
    uint16_t half[2];

    weights_store(f->storage, &value, 1, noise, half);
    return half[0];
}

static uint32_t set_to(const struct format *f, float value)
{
    uint16_t half[2];

    weights_set(f->storage, &value, 1, half);
    return half[0];
}

static void a_payload_is_a_multiple_of_four_bytes(void **state)
{
    (void)state;
    for (uint32_t dim = 1; dim < 300; dim++) {
        assert_int_equal(weights_bytes(TABLE_SPEC_FP32, dim), 4 * dim);
        assert_int_equal(weights_bytes(TABLE_SPEC_BF16, dim), (2 * dim + 3) / 4 * 4);
        assert_int_equal(weights_bytes(TABLE_SPEC_FP16, dim), (2 * dim + 3) / 4 * 4);
    }
}

static void fp32_is_kept_bit_for_bit(void **state)
{
    const float x[5] = { 1.1f, -0.0f, FLT_MAX, 0x1p-149f, -3 };
    float kept[5], back[5];

    (void)state;
    weights_store(TABLE_SPEC_FP32, x, 5, 77, kept);
    weights_load(TABLE_SPEC_FP32, kept, 5, back);
    assert_memory_equal(back, x, sizeof x);
    memset(kept, 1, sizeof kept);
    weights_set(TABLE_SPEC_FP32, x, 5, kept);
    assert_memory_equal(kept, x, sizeof x);
}

static void loading_is_what_the_codec_decodes(void **state)
{
    static uint16_t codes[65536];
    static float got[65536], want[65536];

    (void)state;
    for (uint32_t i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        weights_load(formats[f].storage, codes, 65536, got);
        codec_by_id(formats[f].codec)->decode((const uint8_t *)codes, 65536, 0, want);
        assert_memory_equal(got, want, sizeof got);
    }
}

static void what_a_half_can_hold_is_stored_as_it_is(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT_OF(formats); f++)
        for (uint32_t code = 0; code < formats[f].n_finite; code++)
            for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
                float value = of_code(&formats[f], code | sign);

                assert_int_equal(set_to(&formats[f], value), code | sign);
                for (uint64_t noise = 0; noise < 4; noise++)
                    assert_int_equal(stored(&formats[f], value, noise), code | sign);
            }
}

static void setting_is_what_the_codec_encodes(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT_OF(formats); f++)
        for (uint64_t i = 0; i < 20000; i++) {
            uint32_t bits = (uint32_t)hash_mix(i) & 0xbfffffffu; /* |x| below 2 */
            float value;
            uint8_t want[2];

            memcpy(&value, &bits, 4);
            codec_by_id(formats[f].codec)->encode(&value, 1, 0, want);
            assert_int_equal(set_to(&formats[f], value), want[0] | want[1] << 8);
        }
}

/* Between codes `below` and the next, `part` of the way up: only these two come out, the upper
 * one as often as it should. */
static void check_odds(const struct format *f, uint32_t below, double part)
{
    const double low = (double)of_code(f, below), step = (double)of_code(f, below + 1) - low;
    const double n = (double)ROW * N_NOISES;
    float row[ROW];
    uint16_t got[ROW];
    double n_up = 0, odds;

    for (uint32_t i = 0; i < ROW; i++)
        row[i] = (float)(i % 2 ? low + part * step : -(low + part * step));
    odds = (fabs((double)row[0]) - low) / step; /* as the float has it */
    for (uint64_t noise = 0; noise < N_NOISES; noise++) {
        weights_store(f->storage, row, ROW, noise, got);
        for (uint32_t i = 0; i < ROW; i++) {
            uint32_t code = got[i] & 0x7fffu;

            assert_int_equal(got[i] >> 15, i % 2 ? 0 : 1);
            assert_true(code == below || code == below + 1);
            n_up += code - below;
        }
    }
    if (fabs(n_up - n * odds) > 5 * sqrt(n * odds * (1 - odds)) + 1e-9)
        fail_msg("code %#x: %g of %g went up, expected %g", below, n_up, n, n * odds);
}

static void a_value_goes_to_each_neighbour_as_often_as_it_is_near_the_other(void **state)
{
    const uint32_t codes[] = { 0, 1, 2, 100, 0x3fe, 0x3ff, 0x400, 0x3c00, 0x3bff, 0x7bfe };
    const double parts[] = { 0, 0.0001, 0.01, 0.25, 0.5, 0.7, 0.999 };

    (void)state;
    for (size_t f = 0; f < COUNT_OF(formats); f++)
        for (size_t c = 0; c < COUNT_OF(codes); c++)
            for (size_t p = 0; p < COUNT_OF(parts); p++)
                check_odds(&formats[f], codes[c], parts[p]);
}

/* Far below the smallest step: 2^-8 of it must survive on average. */
static void steps_smaller_than_the_format_add_up(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        uint16_t half[2] = { (uint16_t)set_to(&formats[f], 1) };
        float w;

        for (uint64_t t = 0; t < 100000; t++) {
            weights_load(formats[f].storage, half, 1, &w);
            w += 1e-5f;
            weights_store(formats[f].storage, &w, 1, t, half);
        }
        weights_load(formats[f].storage, half, 1, &w);
        assert_true(fabsf(w - 2) < 0.2f);
    }
}

static void too_large_becomes_the_largest_and_nan_stays(void **state)
{
    const float large[] = { FLT_MAX, INFINITY, 3.4e38f };

    (void)state;
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        const struct format *format = &formats[f];
        const uint32_t largest = format->n_finite - 1;

        for (uint64_t noise = 0; noise < 100; noise++) {
            for (size_t i = 0; i < COUNT_OF(large); i++) {
                assert_in_range(stored(format, large[i], noise), largest - 1, largest);
                assert_in_range(stored(format, -large[i], noise), 0x8000 | (largest - 1),
                                0x8000 | largest);
            }
            assert_int_equal(stored(format, INFINITY, noise), largest);
            assert_true(isnan(of_code(format, stored(format, NAN, noise))));
            assert_true(isnan(of_code(format, stored(format, -NAN, noise))));
        }
        assert_int_equal(set_to(format, FLT_MAX), largest);
        assert_int_equal(set_to(format, -INFINITY), 0x8000 | largest);
        assert_true(isnan(of_code(format, set_to(format, NAN))));
    }
    assert_int_equal(stored(&formats[1], 65505, 1), 0x7bff);
    assert_int_equal(set_to(&formats[1], 65520), 0x7bff);
}

static void the_same_noise_rounds_alike_and_another_does_not(void **state)
{
    float row[ROW];
    uint16_t a[ROW], b[ROW], c[ROW];

    (void)state;
    for (uint32_t i = 0; i < ROW; i++)
        row[i] = 1 + 0x1p-9f + 0x1p-12f;
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        weights_store(formats[f].storage, row, ROW, 1, a);
        weights_store(formats[f].storage, row, ROW, 1, b);
        weights_store(formats[f].storage, row, ROW, UINT64_C(1) << 63 | 1, c);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_not_equal(a, c, sizeof a);
    }
}

/* Neither the next place nor the next noise knows which way this one went. */
static void roundings_do_not_go_together(void **state)
{
    const double n = (double)(ROW - 1) * N_NOISES, slack = 5 * sqrt(n / 4);
    float row[ROW];
    uint16_t last[ROW] = { 0 }, now[ROW];

    (void)state;
    for (uint32_t i = 0; i < ROW; i++)
        row[i] = 0x1p-25f; /* half of fp16's least step */
    for (uint32_t distance = 1; distance < ROW; distance *= 2) {
        double n_alike_in_place = 0, n_alike_in_time = 0, rows = 0;

        for (uint64_t noise = 0; noise < N_NOISES; noise++, rows++) {
            weights_store(TABLE_SPEC_FP16, row, ROW, noise * distance, now);
            for (uint32_t i = 0; i + 1 < ROW; i++) {
                n_alike_in_place += now[i] == now[(i + distance) % ROW];
                n_alike_in_time += now[i] == last[i];
            }
            memcpy(last, now, sizeof last);
        }
        assert_true(fabs(n_alike_in_place - n / 2) < 2 * slack);
        assert_true(fabs(n_alike_in_time - n / 2) < 2 * slack);
    }
}

static float odd_value(uint64_t h)
{
    static const float corners[] = { 0,     -0.0f, FLT_MAX,   -FLT_MAX, INFINITY, NAN,   -NAN,
                                     65504, 65505, 0x1p-149f, 0x1p-14f, 0x1p-24f, 65536, 1 };
    uint32_t bits = (uint32_t)h;
    float value;

    if (h >> 62 == 0)
        return corners[h % COUNT_OF(corners)];
    if (h >> 62 == 1)
        return ldexpf(2 * hash_unit(h << 2) - 1, (int)(h % 50) - 30);
    memcpy(&value, &bits, 4);
    return value;
}

static void compare_build(enum table_spec_storage storage, enum simd build, uint32_t dim)
{
    const struct weights_ops *plain = weights_ops(storage, SIMD_PLAIN),
                             *ops = weights_ops(storage, build);
    const size_t n_bytes = weights_bytes(storage, dim);
    uint8_t *want = calloc(1, n_bytes), *got = calloc(1, n_bytes);
    float *x = malloc(dim * sizeof *x), *want_x = malloc(dim * sizeof *x),
          *got_x = malloc(dim * sizeof *x);

    for (uint64_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < dim; i++)
            x[i] = odd_value(hash_mix2(round * 1000 + dim, i));
        plain->store(x, dim, round << 20, want);
        ops->store(x, dim, round << 20, got);
        assert_memory_equal(got, want, n_bytes);
        plain->load(want, dim, want_x);
        ops->load(got, dim, got_x);
        assert_memory_equal(got_x, want_x, dim * sizeof *x);
        memset(want, 0xff, n_bytes);
        memset(got, 0xff, n_bytes);
        plain->set(x, dim, want);
        ops->set(x, dim, got);
        assert_memory_equal(got, want, n_bytes);
    }
    free(want);
    free(got);
    free(x);
    free(want_x);
    free(got_x);
}

static void every_build_leaves_the_plain_bits(void **state)
{
    (void)state;
    for (unsigned storage = 0; storage < TABLE_SPEC_STORAGE_END; storage++)
        for (unsigned build = SIMD_PLAIN; build < SIMD_END; build++)
            for (uint32_t dim = 1; dim <= 1100 && simd_runs((enum simd)build);
                 dim += dim < 130 ? 1 : 323)
                compare_build((enum table_spec_storage)storage, (enum simd)build, dim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_payload_is_a_multiple_of_four_bytes),
        cmocka_unit_test(fp32_is_kept_bit_for_bit),
        cmocka_unit_test(loading_is_what_the_codec_decodes),
        cmocka_unit_test(what_a_half_can_hold_is_stored_as_it_is),
        cmocka_unit_test(setting_is_what_the_codec_encodes),
        cmocka_unit_test(a_value_goes_to_each_neighbour_as_often_as_it_is_near_the_other),
        cmocka_unit_test(steps_smaller_than_the_format_add_up),
        cmocka_unit_test(too_large_becomes_the_largest_and_nan_stays),
        cmocka_unit_test(the_same_noise_rounds_alike_and_another_does_not),
        cmocka_unit_test(roundings_do_not_go_together),
        cmocka_unit_test(every_build_leaves_the_plain_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
