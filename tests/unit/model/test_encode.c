/* The op that encodes, on the CPU: what the client writes of the same rows, codec by codec (worker/client/push_encoder.c). */
#include <math.h>

#include "proto/codec_catalog.h"
#include "tests/unit/model/fixture.h"

enum { DIM = 300, K = 5, N = 4, ROWS = 6, BYTES_MAX = 4 * DIM };

/* Row i of N is row FROM[i], residual RESIDUAL_AT[i]. */
static const uint32_t from[N] = { 4, DEVICE_NONE, 0, 2 },
                      residual_at[N] = { 1, 5, DEVICE_NONE, 0 };

struct bench {
    struct compute *c;
    float rows[ROWS * DIM], residual[ROWS * DIM], before[ROWS * DIM];
    uint8_t bytes[N * BYTES_MAX];
};

static struct bench *bench_new(void)
{
    struct bench *b = memory_alloc(sizeof *b);
    struct fixture_rng rng = { 77, 0 };

    assert_int_equal(
        device_cpu.open(&(struct device_options){ .n_threads = 1, .products = DEVICE_BLAS },
                        &b->c, NULL),
        0);
    fixture_fill(&rng, b->rows, ROWS * DIM, 1);
    fixture_fill(&rng, b->residual, ROWS * DIM, 0.3f);
    memcpy(b->before, b->residual, sizeof b->before);
    return b;
}

static void bench_free(struct bench *b)
{
    device_cpu.close(b->c);
    free(b);
}

static void run(struct bench *b, enum codec_id codec, uint32_t n, const uint32_t *rows_from,
                float *residual, const uint32_t *at)
{
    device_cpu.encode(b->c, &(struct device_encode){ .codec = codec,
                                                     .dim = DIM,
                                                     .k = K,
                                                     .n_max = N,
                                                     .n = &n,
                                                     .rows = b->rows,
                                                     .from = rows_from,
                                                     .residual = residual,
                                                     .residual_at = at,
                                                     .bytes = b->bytes });
}

/* What row i came to, and that `v` was written. */
static void check_row(const struct bench *b, const struct codec *codec, uint32_t i,
                      const float *v)
{
    const size_t row_bytes = codec->row_bytes(DIM, K);
    uint8_t want[BYTES_MAX];

    codec->encode(v, DIM, K, want);
    assert_memory_equal(b->bytes + i * row_bytes, want, row_bytes);
}

static void rows_go_as_the_codec_writes_them(void **state)
{
    struct bench *b = bench_new();

    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++) {
        run(b, (enum codec_id)id, N, NULL, NULL, NULL);
        for (uint32_t i = 0; i < N; i++)
            check_row(b, codec_by_id(id), i, b->rows + (size_t)i * DIM);
    }
    bench_free(b);
}

/* The sum of row i of N that is encoded. */
static void add_up(const struct bench *b, uint32_t i, float *v)
{
    for (uint32_t d = 0; d < DIM; d++) {
        v[d] = from[i] == DEVICE_NONE ? 0 : b->rows[from[i] * DIM + d];
        if (residual_at[i] != DEVICE_NONE)
            v[d] += b->before[residual_at[i] * DIM + d];
    }
}

/* A codec that keeps nothing brings what another one kept, and it is residual no more; what no row named stays. */
static void residuals_go_along_and_are_sent_or_kept(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++) {
        const struct codec *codec = codec_by_id(id);
        struct bench *b = bench_new();
        float want[ROWS * DIM], v[DIM], got[DIM];

        memcpy(want, b->before, sizeof want);
        run(b, codec->id, N, from, b->residual, residual_at);
        for (uint32_t i = 0; i < N; i++) {
            add_up(b, i, v);
            check_row(b, codec, i, v);
            assert_int_equal(
                codec->decode(b->bytes + i * codec->row_bytes(DIM, K), DIM, K, got), 0);
            for (uint32_t d = 0; d < DIM && residual_at[i] != DEVICE_NONE; d++)
                want[residual_at[i] * DIM + d] = codec->feedback ? v[d] - got[d] : 0;
        }
        assert_memory_equal(b->residual, want, sizeof want);
        bench_free(b);
    }
}

static void without_places_row_i_has_residual_i(void **state)
{
    struct bench *b = bench_new();
    float scratch[2 * DIM];
    uint8_t want[BYTES_MAX];

    (void)state;
    run(b, CODEC_TOPK, N, NULL, b->residual, NULL);
    for (uint32_t i = 0; i < N; i++) {
        codec_encode_feedback(codec_by_id(CODEC_TOPK), b->rows + i * DIM, b->before + i * DIM,
                              DIM, K, scratch, want);
        assert_memory_equal(b->bytes + i * 6 * K, want, 6 * K);
    }
    assert_memory_equal(b->residual, b->before, sizeof b->before);
    bench_free(b);
}

/* As push_encoder.c's encode_nan(), and rows without it. */
static void values_that_are_not_finite_are_reported_and_leave_no_residual(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };

    (void)state;
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        for (uint32_t i = 0; i < COUNT_OF(bad); i++) {
            const struct codec *codec = codec_by_id(id);
            struct bench *b = bench_new();
            float v[DIM];

            b->rows[17] = bad[i];
            run(b, codec->id, 1, NULL, b->residual, NULL);
            for (uint32_t d = 0; d < DIM; d++)
                v[d] = codec->feedback || d == 17 ? (codec->feedback ? NAN : bad[i])
                                                  : b->rows[d] + b->before[d];
            check_row(b, codec, 0, v);
            assert_int_equal(codec->check(b->bytes, DIM, K, CODEC_FINITE), PS_ENAN);
            for (uint32_t d = 0; d < DIM; d++)
                assert_true(b->residual[d] == (codec->feedback ? b->before[d] : 0));
            bench_free(b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_as_the_codec_writes_them),
        cmocka_unit_test(residuals_go_along_and_are_sent_or_kept),
        cmocka_unit_test(without_places_row_i_has_residual_i),
        cmocka_unit_test(values_that_are_not_finite_are_reported_and_leave_no_residual),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
