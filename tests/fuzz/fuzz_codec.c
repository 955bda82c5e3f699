/*
 * Value codecs: u8 codec | u8 k | u16 dim | bytes.
 *
 * The bytes are a row as it may come: decode() and check() agree about it, every build agrees with
 * every other, and what was decoded survives another trip. They are floats, too: what encode() makes
 * of any floats is a row.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/status.h"
#include "proto/codec_catalog.h"
#include "tests/fuzz/harness.h"

#define DIM_MAX 320u

struct shape {
    const struct codec *codec; /* of one build */
    uint32_t dim, k;
    size_t row_bytes;
};

static bool is_finite(const float *x, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Of the same value; all NaN are one. */
static bool is_same(const float *a, const float *b, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))))
            return false;
    return true;
}

static void *memory(size_t n_bytes)
{
    void *p = malloc(n_bytes);

    assert(p || !n_bytes);
    return p;
}

/* How near: int8 finds its scale anew, and that is rounded; to a whole number of the least floats, if
 * it is that small. */
static void check_near(const float *a, const float *b, uint32_t dim)
{
    float most = 0;

    for (uint32_t i = 0; i < dim; i++)
        most = fmaxf(most, fabsf(a[i]));
    for (uint32_t i = 0; i < dim; i++)
        assert(fabsf(a[i] - b[i]) <= most * 0.01f + 2e-43f);
}

/* A row that came, and is finite, comes again as it was. */
static void check_second_trip(const struct shape *s, const uint8_t *src, const float *row)
{
    uint8_t *again = memory(s->row_bytes);
    float *back = memory(s->dim * sizeof *back);

    s->codec->encode(row, s->dim, s->k, again);
    assert(s->codec->check(again, s->dim, s->k, CODEC_FINITE) == 0);
    assert(s->codec->decode(again, s->dim, s->k, back) == 0);
    if (s->codec->id <= CODEC_FP16)
        assert(memcmp(again, src, s->row_bytes) == 0);
    else if (s->codec->id == CODEC_INT8)
        check_near(row, back, s->dim);
    else
        assert(is_same(row, back, s->dim));
    free(again);
    free(back);
}

/* The row in one build; the status, and the floats in *ret. */
static int decode(const struct shape *s, const uint8_t *src, float *ret)
{
    int status = s->codec->decode(src, s->dim, s->k, ret);
    int said = s->codec->check(src, s->dim, s->k, CODEC_FINITE);

    assert(status == 0 || status == PS_ECODEC);
    if (status)
        assert(said == status);
    else
        assert(said == (is_finite(ret, s->dim) ? 0 : PS_ENAN));
    return said;
}

static void check_row(const struct shape *plain, const struct shape *s, const uint8_t *src)
{
    float *want = memory(s->dim * sizeof *want), *got = memory(s->dim * sizeof *got);
    int status = decode(plain, src, want);

    assert(decode(s, src, got) == status);
    if (status != PS_ECODEC)
        assert(is_same(want, got, s->dim));
    if (!status)
        check_second_trip(s, src, got);
    free(want);
    free(got);
}

static void check_floats(const struct shape *plain, const struct shape *s, const float *row)
{
    uint8_t *want = memory(s->row_bytes), *got = memory(s->row_bytes);
    float *back = memory(s->dim * sizeof *back);

    plain->codec->encode(row, s->dim, s->k, want);
    s->codec->encode(row, s->dim, s->k, got);
    assert(memcmp(want, got, s->row_bytes) == 0);
    assert(s->codec->decode(got, s->dim, s->k, back) == 0);
    if (!is_finite(row, s->dim))
        assert(s->codec->check(got, s->dim, s->k, CODEC_FINITE) == PS_ENAN);
    else if (s->codec->id != CODEC_FP16 && s->codec->id != CODEC_BF16)
        assert(is_finite(back, s->dim));
    free(want);
    free(got);
    free(back);
}

/* What is sent and what is kept of it is what there was. */
static void check_feedback(const struct shape *s, const float *row)
{
    uint8_t *dst = memory(s->row_bytes);
    float *scratch = memory(2 * s->dim * sizeof *scratch);
    float *kept = calloc(s->dim, sizeof *kept), *sent = memory(s->dim * sizeof *sent);

    assert(kept || !s->dim);
    codec_encode_feedback(s->codec, row, kept, s->dim, s->k, scratch, dst);
    assert(is_finite(kept, s->dim));
    assert(s->codec->decode(dst, s->dim, s->k, sent) == 0);
    for (uint32_t i = 0; i < s->dim && is_finite(row, s->dim); i++)
        if (isfinite(sent[i]) && isfinite(row[i] - sent[i]))
            assert(kept[i] == row[i] - sent[i]);
    free(dst);
    free(scratch);
    free(kept);
    free(sent);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    enum codec_id id = (enum codec_id)(harness_number(&in, 1) % CODEC_ID_END);
    struct shape plain = { .codec = codec_build(id, SIMD_PLAIN),
                           .k = 1 + (uint32_t)harness_number(&in, 1),
                           .dim = 1 + (uint32_t)harness_number(&in, 2) % DIM_MAX };
    uint8_t *src;
    float *row;
    size_t n;

    plain.k = plain.k < plain.dim ? plain.k : plain.dim;
    plain.row_bytes = plain.codec->row_bytes(plain.dim, plain.k);
    src = calloc(1, plain.row_bytes);
    row = calloc(plain.dim, sizeof *row);
    assert(src && row);
    n = harness_left(&in);
    memcpy(src, in.at, n < plain.row_bytes ? n : plain.row_bytes);
    memcpy(row, in.at, n < plain.dim * sizeof *row ? n : plain.dim * sizeof *row);
    for (enum simd build = SIMD_PLAIN; build < SIMD_END; build++) {
        struct shape s = plain;

        if (!simd_runs(build))
            continue;
        s.codec = codec_build(id, build);
        check_row(&plain, &s, src);
        check_floats(&plain, &s, row);
        check_feedback(&s, row);
    }
    free(src);
    free(row);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    const uint32_t dims[] = { 1, 16, 300 };
    const struct codec *codec = codec_by_id(i / COUNT_OF(dims));
    uint32_t dim = dims[i % COUNT_OF(dims)], k = (dim + 1) / 2;
    uint8_t bytes[2048];
    float row[300];

    if (!codec)
        return false;
    k = k < 200 ? k : 200;
    for (uint32_t j = 0; j < dim; j++)
        row[j] = (float)((int)(j * 7919 % 211) - 100) / 64;
    codec->encode(row, dim, k, bytes);
    harness_put_number(out, codec->id, 1);
    harness_put_number(out, k - 1, 1);
    harness_put_number(out, dim - 1, 2);
    harness_put(out, bytes, codec->row_bytes(dim, k));
    return true;
}
