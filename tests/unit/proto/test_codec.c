#include <float.h>
#include <math.h>

#include "common/hash.h"
#include "common/status.h"
#include "proto/codec_catalog.h"
#include "proto/table_spec.h"
#include "tests/support/npy.h"

#define DIM_MAX 5000u

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Every value of a 16-bit golden case, as bit patterns, both ways; NaN need only stay NaN. */
static void check_half(const char *case_name, const struct codec *codec)
{
    struct npy x = npy_load(case_name, "x_bits"), is_nan = npy_load(case_name, "is_nan");
    uint32_t n = (uint32_t)x.n;
    int64_t *bits = calloc(n, sizeof *bits), *back = calloc(n, sizeof *back);
    float *in = calloc(n, sizeof *in), *out = calloc(n, sizeof *out);
    uint8_t *bytes = malloc(codec->row_bytes(n, 0));

    for (uint32_t i = 0; i < n; i++) {
        uint32_t pattern = (uint32_t)x.i[i];

        memcpy(in + i, &pattern, 4);
    }
    codec->encode(in, n, 0, bytes);
    assert_int_equal(codec->decode(bytes, n, 0, out), 0);
    for (uint32_t i = 0; i < n; i++) {
        bits[i] = is_nan.i[i] ? 0 : bytes[2 * i] | bytes[2 * i + 1] << 8;
        back[i] = is_nan.i[i] ? 0 : bits_of(out[i]);
        assert_true(!is_nan.i[i] || isnan(out[i]));
    }
    npy_check(case_name, "bits", bits, 0, -1);
    npy_check(case_name, "back_bits", back, 0, -1);
    free(bytes);
    free(out);
    free(in);
    free(back);
    free(bits);
    npy_free(&is_nan);
    npy_free(&x);
}

static void fp16_equals_the_golden_bits(void **state)
{
    (void)state;
    check_half("codec_fp16", &codec_fp16);
}

static void bf16_equals_the_golden_bits(void **state)
{
    (void)state;
    check_half("codec_bf16", &codec_bf16);
}

static void every_fp16_comes_back_as_itself(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint8_t in[2] = { (uint8_t)bits, (uint8_t)(bits >> 8) }, out[2];
        float value;

        assert_int_equal(codec_fp16.decode(in, 1, 0, &value), 0);
        if (isnan(value))
            continue;
        codec_fp16.encode(&value, 1, 0, out);
        assert_memory_equal(in, out, 2);
    }
}

static void int8_equals_the_golden_codes(void **state)
{
    struct npy x = npy_load("codec_int8", "x");
    uint32_t rows = (uint32_t)x.dims[0], dim = (uint32_t)x.dims[1];
    int64_t *q = calloc((size_t)x.n, sizeof *q);
    float *scale = calloc(rows, sizeof *scale), *decoded = calloc((size_t)x.n, sizeof *decoded);
    uint8_t *bytes = malloc(codec_int8.row_bytes(dim, 0));

    (void)state;
    for (uint32_t r = 0; r < rows; r++) {
        codec_int8.encode(x.f + (size_t)r * dim, dim, 0, bytes);
        memcpy(scale + r, bytes, 4);
        for (uint32_t i = 0; i < dim; i++)
            q[(size_t)r * dim + i] = (int8_t)bytes[4 + i];
        assert_int_equal(codec_int8.decode(bytes, dim, 0, decoded + (size_t)r * dim), 0);
    }
    npy_check("codec_int8", "scale", scale, 0, -1);
    npy_check("codec_int8", "q", q, 0, -1);
    npy_check("codec_int8", "decoded", decoded, 0, -1);
    free(bytes);
    free(decoded);
    free(scale);
    free(q);
    npy_free(&x);
}

static void onebit_with_feedback_equals_the_golden_steps(void **state)
{
    struct npy g = npy_load("codec_onebit", "g");
    uint32_t steps = (uint32_t)g.dims[0], dim = (uint32_t)g.dims[1];
    uint32_t n_blocks = (dim + 255) / 256, n_packed = (dim + 7) / 8;
    float *residual = calloc(dim, sizeof *residual),
          *scratch = calloc(2 * dim, sizeof *scratch);
    float scale[8], *decoded = scratch + dim;
    int64_t packed[1000];
    uint8_t bytes[1000];

    (void)state;
    assert_true(n_blocks <= 8 && n_packed <= 1000 &&
                codec_onebit.row_bytes(dim, 0) <= sizeof bytes);
    for (uint32_t t = 0; t < steps; t++) {
        codec_encode_feedback(&codec_onebit, g.f + (size_t)t * dim, residual, dim, 0, scratch,
                              bytes);
        memcpy(scale, bytes, 4 * n_blocks);
        for (uint32_t i = 0; i < n_packed; i++)
            packed[i] = bytes[4 * n_blocks + i];
        npy_check("codec_onebit", "packed", packed, (int64_t)t * n_packed, n_packed);
        npy_check("codec_onebit", "scale", scale, (int64_t)t * n_blocks, n_blocks);
        npy_check("codec_onebit", "decoded", decoded, (int64_t)t * dim, dim);
        npy_check("codec_onebit", "residual", residual, (int64_t)t * dim, dim);
    }
    free(scratch);
    free(residual);
    npy_free(&g);
}

static void topk_with_feedback_equals_the_golden_steps(void **state)
{
    struct npy g = npy_load("codec_topk", "g");
    uint32_t steps = (uint32_t)g.dims[0], dim = (uint32_t)g.dims[1];
    uint32_t k = (uint32_t)npy_param("codec_topk", "k");
    float *residual = calloc(dim, sizeof *residual),
          *scratch = calloc(2 * dim, sizeof *scratch);
    float value[64], l1[32];
    uint8_t bytes[64 * 6];
    int64_t index[64];

    (void)state;
    assert_true(k <= 64 && steps <= 32);
    for (uint32_t t = 0; t < steps; t++) {
        double sum = 0;

        codec_encode_feedback(&codec_topk, g.f + (size_t)t * dim, residual, dim, k, scratch,
                              bytes);
        for (uint32_t i = 0; i < k; i++)
            index[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
        memcpy(value, bytes + 2 * k, 4 * k);
        npy_check("codec_topk", "idx", index, (int64_t)t * k, k);
        npy_check("codec_topk", "val", value, (int64_t)t * k, k);
        for (uint32_t i = 0; i < dim; i++)
            sum += fabs((double)residual[i]);
        l1[t] = (float)sum;
    }
    npy_check("codec_topk", "residual_l1", l1, 0, -1);
    npy_check("codec_topk", "residual_last", residual, 0, -1);
    free(scratch);
    free(residual);
    npy_free(&g);
}

static void topk_gives_ties_to_the_lower_index(void **state)
{
    struct npy x = npy_load("codec_topk", "tie_x");
    uint8_t bytes[18];
    int64_t index[3];

    (void)state;
    codec_topk.encode(x.f, (uint32_t)x.n, 3, bytes);
    for (uint32_t i = 0; i < 3; i++)
        index[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
    npy_check("codec_topk", "tie_idx", index, 0, -1);
    npy_free(&x);
}

/* The trivial references: one value at a time, in double, straight from the table in codec.h. */

static double reference_round_half(double x, int mantissa_bits, int exponent_min,
                                   double overflow)
{
    int exponent;
    double step;

    if (x == 0)
        return 0;
    frexp(x, &exponent);
    exponent = exponent - 1 < exponent_min ? exponent_min : exponent - 1;
    step = ldexp(1, exponent - mantissa_bits);
    x = nearbyint(x / step) * step;
    return fabs(x) >= overflow ? copysign(INFINITY, x) : x;
}

static void reference_int8(const float *x, uint32_t dim, float *ret)
{
    float max = 0, scale;

    for (uint32_t i = 0; i < dim; i++)
        max = fmaxf(max, fabsf(x[i]));
    scale = max / 127;
    for (uint32_t i = 0; i < dim; i++)
        ret[i] = scale > 0 ? fminf(fmaxf(nearbyintf(x[i] / scale), -127), 127) * scale : 0;
}

static void reference_onebit(const float *x, uint32_t dim, float *ret)
{
    for (uint32_t b = 0; b < dim; b += 256) {
        uint32_t n = dim - b < 256 ? dim - b : 256;
        double sum = 0;

        for (uint32_t i = b; i < b + n; i++)
            sum += fabs((double)x[i]);
        for (uint32_t i = b; i < b + n; i++)
            ret[i] = (float)(x[i] >= 0 ? sum / n : -sum / n);
    }
}

/* Takes the largest that is left, the first of equals, k times. */
static void reference_topk(const float *x, uint32_t dim, uint32_t k, float *ret)
{
    static bool taken[DIM_MAX];

    memset(taken, 0, sizeof taken);
    memset(ret, 0, dim * sizeof *ret);
    while (k--) {
        uint32_t best = UINT32_MAX;

        for (uint32_t i = 0; i < dim; i++)
            if (!taken[i] && (best == UINT32_MAX || fabsf(x[i]) > fabsf(x[best])))
                best = i;
        taken[best] = true;
        ret[best] = x[best];
    }
}

static void reference(enum codec_id id, const float *x, uint32_t dim, uint32_t k, float *ret)
{
    switch (id) {
    case CODEC_INT8:
        reference_int8(x, dim, ret);
        return;
    case CODEC_ONEBIT:
        reference_onebit(x, dim, ret);
        return;
    case CODEC_TOPK:
        reference_topk(x, dim, k, ret);
        return;
    default:
        for (uint32_t i = 0; i < dim; i++)
            ret[i] = id == CODEC_FP32 ? x[i]
                     : id == CODEC_BF16
                         ? (float)reference_round_half((double)x[i], 7, -126, 0x1p128)
                         : (float)reference_round_half((double)x[i], 10, -14, 65536);
    }
}

/* Values that bring out corners: many sizes, zeros, ties, subnormals. */
static void random_row(uint64_t seed, float *x, uint32_t dim)
{
    int range = (int)(hash_mix(seed) % 3);

    for (uint32_t i = 0; i < dim; i++) {
        uint64_t h = hash_mix2(seed, i);
        float unit = 2 * hash_unit(h) - 1;

        x[i] = range == 0   ? unit
               : range == 1 ? (float)((int)(h % 9) - 4) * 0.25f
                            : ldexpf(unit, (int)(h % 280) - 160);
    }
}

static void random_rows_equal_the_references(void **state)
{
    static float x[DIM_MAX], got[DIM_MAX], want[DIM_MAX];
    uint64_t seed = 7001;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 600; round++) {
        const struct codec *codec = codec_by_id((uint32_t)(round % CODEC_ID_END));
        uint32_t dim = 1 + (uint32_t)(hash_mix2(seed, round) % (round % 5 ? 70 : 900));
        uint32_t k = 1 + (uint32_t)(hash_mix2(seed + 1, round) % dim);
        /* One byte further on, and not a byte more: nothing may need alignment or run over. */
        uint8_t *bytes = malloc(codec->row_bytes(dim, k) + 1);

        random_row(seed + round, x, dim);
        codec->encode(x, dim, k, bytes + 1);
        assert_int_equal(codec->decode(bytes + 1, dim, k, got), 0);
        reference(codec->id, x, dim, k, want);
        for (uint32_t i = 0; i < dim; i++) {
            float slack = codec->id == CODEC_ONEBIT ? 1e-6f * fabsf(want[i]) : 0;

            if (!(got[i] == want[i] || fabsf(got[i] - want[i]) <= slack))
                fail_msg("%s dim %u k %u [%u]: x %a got %a want %a", codec->name, dim, k, i,
                         (double)x[i], (double)got[i], (double)want[i]);
        }
        free(bytes);
    }
}

static void the_largest_floats_stay_finite_in_int8_and_onebit(void **state)
{
    const float x[3] = { FLT_MAX, -FLT_MAX, 1 };
    uint8_t bytes[16];
    float back[3];

    (void)state;
    codec_int8.encode(x, 3, 0, bytes);
    assert_int_equal(codec_int8.decode(bytes, 3, 0, back), 0);
    assert_true(isfinite(back[0]) && isfinite(back[1]) && back[0] > 0.9999f * FLT_MAX);
    codec_onebit.encode(x, 3, 0, bytes);
    assert_int_equal(codec_onebit.decode(bytes, 3, 0, back), 0);
    assert_true(isfinite(back[0]) && isfinite(back[1]));
}

/* A server refuses pushes that are not finite: no codec may hide from it that one is. */
static void nan_and_infinity_are_not_hidden_by_any_codec(void **state)
{
    const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    float x[300], back[300];
    uint8_t bytes[2000];

    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        for (size_t b = 0; b < COUNT_OF(bad); b++)
            for (uint32_t at = 0; at < 300; at += 23) {
                const struct codec *codec = codec_by_id(id);
                bool seen = false;

                random_row(3 + at * 3, x, 300);
                x[at] = bad[b];
                codec->encode(x, 300, 3, bytes);
                assert_int_equal(codec->decode(bytes, 300, 3, back), 0);
                for (uint32_t i = 0; i < 300; i++)
                    seen = seen || !isfinite(back[i]);
                assert_true(seen);
            }
}

static void feedback_sends_everything_in_the_end(void **state)
{
    float grad[40], residual[40] = { 0 }, scratch[80], sum[40] = { 0 }, sent[40] = { 0 };
    uint8_t bytes[400];

    (void)state;
    for (uint64_t step = 0; step < 400; step++) {
        for (uint32_t i = 0; i < 40; i++)
            grad[i] = 2 * hash_unit(hash_mix2(step, i)) - 1;
        codec_encode_feedback(&codec_topk, grad, residual, 40, 4, scratch, bytes);
        for (uint32_t i = 0; i < 40; i++) {
            sum[i] += grad[i];
            sent[i] += scratch[40 + i];
        }
    }
    for (uint32_t i = 0; i < 40; i++)
        assert_true(fabsf(sum[i] - sent[i] - residual[i]) < 1e-3f);
}

static void a_nan_gradient_does_not_poison_the_residual(void **state)
{
    const float grad[4] = { 1, NAN, INFINITY, -2 };
    float residual[4] = { 0 }, scratch[8];
    uint8_t bytes[64];

    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++) {
        codec_encode_feedback(codec_by_id(id), grad, residual, 4, 2, scratch, bytes);
        for (uint32_t i = 0; i < 4; i++)
            assert_true(isfinite(residual[i]));
    }
}

static void bytes_that_no_encoder_wrote_are_refused(void **state)
{
    /* k = 2: two indices, two values */
    uint8_t same[12] = { 3, 0, 3, 0 }, back[12] = { 3, 0, 2, 0 }, beyond[12] = { 3, 0, 8, 0 };
    uint8_t fine[12] = { 3, 0, 7, 0 }, int8[6] = { 0, 0, 128, 63, 0x80, 1 };
    uint8_t onebit[5] = { 0, 0, 128, 63, 0x08 };
    float x[8];

    (void)state;
    assert_int_equal(codec_topk.decode(fine, 8, 2, x), 0);
    assert_int_equal(codec_topk.decode(same, 8, 2, x), PS_ECODEC);
    assert_int_equal(codec_topk.decode(back, 8, 2, x), PS_ECODEC);
    assert_int_equal(codec_topk.decode(beyond, 8, 2, x), PS_ECODEC);
    assert_int_equal(codec_int8.decode(int8, 2, 0, x), PS_ECODEC);
    assert_int_equal(codec_onebit.decode(onebit, 3, 0, x), PS_ECODEC);
    assert_int_equal(codec_onebit.decode(onebit, 4, 0, x), 0);
}

static void any_bytes_are_decoded_or_refused(void **state)
{
    float x[100];

    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        const struct codec *codec = codec_by_id((uint32_t)(round % CODEC_ID_END));
        uint32_t dim = 1 + (uint32_t)(hash_mix(round) % 100), k = 1 + (uint32_t)(round % dim);
        size_t n_bytes = codec->row_bytes(dim, k);
        uint8_t *bytes = malloc(n_bytes);
        int status;

        for (size_t i = 0; i < n_bytes; i++)
            bytes[i] = (uint8_t)hash_mix2(round, i);
        status = codec->decode(bytes, dim, k, x);
        assert_true(status == 0 || status == PS_ECODEC);
        free(bytes);
    }
}

static void rows_have_the_sizes_of_the_table_in_codec_h(void **state)
{
    (void)state;
    for (uint32_t dim = 1; dim <= TABLE_SPEC_DIM_MAX; dim += dim < 600 ? 1 : 997) {
        assert_int_equal(codec_fp32.row_bytes(dim, 0), 4 * dim);
        assert_int_equal(codec_bf16.row_bytes(dim, 0), 2 * dim);
        assert_int_equal(codec_fp16.row_bytes(dim, 0), 2 * dim);
        assert_int_equal(codec_int8.row_bytes(dim, 0), 4 + dim);
        assert_int_equal(codec_onebit.row_bytes(dim, 0),
                         4 * ((dim + 255) / 256) + (dim + 7) / 8);
        assert_int_equal(codec_topk.row_bytes(dim, dim), 6 * dim);
    }
}

static void codecs_are_found_by_number_and_name(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++) {
        assert_int_equal(codec_by_id(id)->id, id);
        assert_ptr_equal(codec_find(codec_by_id(id)->name), codec_by_id(id));
    }
    assert_int_equal(codec_find("topk")->id, CODEC_TOPK);
    assert_null(codec_by_id(CODEC_ID_END));
    assert_null(codec_by_id(UINT32_MAX));
    assert_null(codec_find("zip"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp16_equals_the_golden_bits),
        cmocka_unit_test(bf16_equals_the_golden_bits),
        cmocka_unit_test(every_fp16_comes_back_as_itself),
        cmocka_unit_test(int8_equals_the_golden_codes),
        cmocka_unit_test(onebit_with_feedback_equals_the_golden_steps),
        cmocka_unit_test(topk_with_feedback_equals_the_golden_steps),
        cmocka_unit_test(topk_gives_ties_to_the_lower_index),
        cmocka_unit_test(random_rows_equal_the_references),
        cmocka_unit_test(the_largest_floats_stay_finite_in_int8_and_onebit),
        cmocka_unit_test(nan_and_infinity_are_not_hidden_by_any_codec),
        cmocka_unit_test(feedback_sends_everything_in_the_end),
        cmocka_unit_test(a_nan_gradient_does_not_poison_the_residual),
        cmocka_unit_test(bytes_that_no_encoder_wrote_are_refused),
        cmocka_unit_test(any_bytes_are_decoded_or_refused),
        cmocka_unit_test(rows_have_the_sizes_of_the_table_in_codec_h),
        cmocka_unit_test(codecs_are_found_by_number_and_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
