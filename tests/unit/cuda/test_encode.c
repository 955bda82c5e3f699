/* Encoders: the codecs' bytes, and what is owed, bit for bit. */
#include "proto/codec_catalog.h"
#include "tests/unit/cuda/lab.h"

typedef cudaError_t encode_fn(cudaStream_t stream, const struct kernels_encode *e);

static const struct {
    enum codec_id id;
    encode_fn *encode;
} codecs[] = {
    { CODEC_BF16, kernels_encode_bf16 }, { CODEC_FP16, kernels_encode_fp16 },
    { CODEC_INT8, kernels_encode_int8 }, { CODEC_ONEBIT, kernels_encode_onebit },
    { CODEC_TOPK, kernels_encode_topk },
};

struct job {
    encode_fn *encode;
    struct kernels_encode e;
    uint32_t n_rows;
};

static cudaError_t run_encode(void *arg)
{
    const struct job *j = arg;

    return j->encode(NULL, &j->e);
}

/* Numbers that codecs stumble over. `kind` 0: none of them. */
static void spoil(struct lab *lab, float *x, size_t n, uint32_t kind)
{
    static const float odd[] = { 0.0f,    -0.0f, 0.5f,    -0.5f,    1e-42f, -1e-45f,
                                 65519.f, 1e38f, 3.4e38f, -3.4e38f, 2e-39f, 65520.f };
    static const float bad[] = { NAN, INFINITY, -INFINITY };

    for (size_t i = 0; i < n; i++) {
        if (kind == 1 && lab_below(lab, 3) == 0)
            x[i] = odd[lab_below(lab, COUNT_OF(odd))];
        if (kind == 2 && lab_below(lab, 40) == 0)
            x[i] = bad[lab_below(lab, COUNT_OF(bad))];
        if (kind == 3) /* ties */
            x[i] = (float)lab_below(lab, 5) - 2;
        if (kind == 4) /* so small that scales are 0 */
            x[i] *= 1e-44f;
    }
}

static uint32_t dim_of(struct lab *lab, uint32_t i)
{
    static const uint32_t dims[] = { 1,   7,   8,   16,  31,  32,  33,   64,
                                     128, 255, 256, 257, 512, 600, 1024, 1100 };

    return i < COUNT_OF(dims) ? dims[i] : 1 + lab_below(lab, 300);
}

static struct job job_of(struct lab *lab, size_t codec, uint32_t dim, uint32_t kind)
{
    struct job j = { .encode = codecs[codec].encode, .n_rows = lab_below(lab, 6) };
    float *rows = lab_floats(lab, (size_t)j.n_rows * dim, 0);
    uint32_t *n_rows = lab_blank(lab, sizeof *n_rows, 0);

    spoil(lab, rows, (size_t)j.n_rows * dim, kind);
    *n_rows = j.n_rows;
    j.e = (struct kernels_encode){ .n_rows = n_rows,
                                   .n_rows_max = j.n_rows + lab_below(lab, 20),
                                   .dim = dim,
                                   .k = 1 + lab_below(lab, dim),
                                   .rows = rows };
    return j;
}

static void rows_travel_in_the_codecs_bytes(void **state)
{
    struct lab *lab = *state;

    for (size_t c = 0; c < COUNT_OF(codecs); c++)
        for (uint32_t i = 0; i < 40; i++) {
            const struct codec *codec = codec_build(codecs[c].id, SIMD_PLAIN);
            struct job j = job_of(lab, c, dim_of(lab, i), i % 5);
            const size_t row_bytes = codec->row_bytes(j.e.dim, j.e.k);
            uint8_t *want = lab_blank(lab, row_bytes, 0);

            j.e.bytes = lab_blank(lab, j.n_rows * row_bytes, i % 4);
            lab_each_order(
                lab, run_encode, &j,
                (struct lab_out[]){ { j.e.bytes, j.n_rows * row_bytes, NULL }, { 0 } });
            for (size_t r = 0; r < j.n_rows; r++) {
                codec->encode(j.e.rows + r * j.e.dim, j.e.dim, j.e.k, want);
                assert_memory_equal(j.e.bytes + r * row_bytes, want, row_bytes);
            }
            lab_sweep(lab);
        }
}

/* The bits of a NaN that an addition made are the processor's; none is owed. */
static void what_is_lost_is_owed_and_goes_out_next_time(void **state)
{
    struct lab *lab = *state;

    for (size_t c = 3; c < COUNT_OF(codecs); c++)
        for (uint32_t i = 0; i < 32; i++) {
            const struct codec *codec = codec_build(codecs[c].id, SIMD_PLAIN);
            const uint32_t dim = dim_of(lab, i), kinds[] = { 0, 1, 3, 4 };
            struct job j = job_of(lab, c, dim, kinds[i % 4]);
            const size_t row_bytes = codec->row_bytes(dim, j.e.k);
            const size_t n_owed = (size_t)(j.n_rows + 3) * dim;
            float *start = lab_floats(lab, n_owed, 0), *scratch = lab_floats(lab, 2 * dim, 0);
            uint8_t *want = lab_blank(lab, row_bytes, 0);
            uint32_t *owed_at = lab_blank(lab, j.n_rows * sizeof *owed_at, 0);

            for (uint32_t r = 0; r < j.n_rows; r++)
                owed_at[r] = j.n_rows + 2 - r;
            j.e.owed_at = i % 3 ? owed_at : NULL;
            j.e.bytes = lab_blank(lab, j.n_rows * row_bytes, i % 4);
            j.e.residuals = lab_blank(lab, n_owed * sizeof(float), 0);
            lab_each_order(lab, run_encode, &j,
                           (struct lab_out[]){ { j.e.bytes, j.n_rows * row_bytes, NULL },
                                               { j.e.residuals, n_owed * sizeof(float), start },
                                               { 0 } });
            for (uint32_t r = 0; r < j.n_rows; r++) {
                float *owed = start + (size_t)(j.e.owed_at ? owed_at[r] : r) * dim;

                codec_encode_feedback(codec, j.e.rows + (size_t)r * dim, owed, dim, j.e.k,
                                      scratch, want);
                assert_memory_equal(j.e.bytes + r * row_bytes, want, row_bytes);
            }
            lab_same(j.e.residuals, start, n_owed);
            lab_sweep(lab);
        }
}

static void what_is_not_finite_is_sent_and_not_owed(void **state)
{
    static const float odd[] = { 1, NAN, -2, INFINITY, 0.5f, -INFINITY, 3, 0 };
    struct lab *lab = *state;

    for (size_t c = 3; c < COUNT_OF(codecs); c++) {
        const struct codec *codec = codec_build(codecs[c].id, SIMD_PLAIN);
        float *rows = lab_blank(lab, sizeof odd, 0), *owed = lab_floats(lab, 8, 0);
        uint32_t *n_rows = lab_blank(lab, sizeof *n_rows, 0);
        const struct kernels_encode e = { .n_rows = n_rows,
                                          .n_rows_max = 1,
                                          .dim = 8,
                                          .k = 4,
                                          .rows = rows,
                                          .bytes = lab_blank(lab, 64, 0),
                                          .residuals = owed };

        memcpy(rows, odd, sizeof odd);
        *n_rows = 1;
        lab_ran(codecs[c].encode(NULL, &e));
        assert_int_equal(codec->check(e.bytes, 8, 4), PS_ENAN);
        for (int i = 0; i < 8; i++)
            assert_true(owed[i] - owed[i] == 0);
    }
    lab_sweep(lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_travel_in_the_codecs_bytes),
        cmocka_unit_test(what_is_lost_is_owed_and_goes_out_next_time),
        cmocka_unit_test(what_is_not_finite_is_sent_and_not_owed),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
