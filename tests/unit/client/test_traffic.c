/* Rows and bytes that a client counts, by codec and operation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base.h"
#include "worker/client/traffic.h"

#define DIM 16u
#define N 10u

static void each_operation_counts_what_it_sends(void **state)
{
    /* fp32: 4 bytes a float; bf16: 2; topk of a quarter: 4 floats of 16, each with its place. */
    static const struct {
        enum section_op op;
        enum codec_id codec, other;
        uint64_t bytes, other_bytes;
    } rows[] = {
        { SECTION_GRADIENT, CODEC_FP32, CODEC_BF16, N * DIM * 4, 0 },
        { SECTION_GRADIENT, CODEC_BF16, CODEC_FP32, N * DIM * 2, 0 },
        { SECTION_GRADIENT_AT, CODEC_BF16, CODEC_FP32, N * DIM * 2, N * DIM * 4 },
        { SECTION_GRADIENT_AT, CODEC_FP32, CODEC_BF16, 2 * N * DIM * 4, 0 },
        { SECTION_ASSIGN, CODEC_BF16, CODEC_FP32, 0, N * DIM * 4 },
        { SECTION_RATE, CODEC_BF16, CODEC_FP32, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct ps_push_section section = { .op = rows[i].op,
                                                 .codec = rows[i].codec,
                                                 .n_keys = N };
        struct traffic t = { 0 };
        struct ps_stats stats = { 0 };

        traffic_pushed(&t, &section, DIM);
        traffic_read(&t, &stats);
        if (stats.rows_pushed != N || stats.rows_pulled != 0 ||
            stats.values_pushed[rows[i].codec] != rows[i].bytes ||
            stats.values_pushed[rows[i].other] != rows[i].other_bytes)
            fail_msg("row %zu: %llu and %llu bytes", i,
                     (unsigned long long)stats.values_pushed[rows[i].codec],
                     (unsigned long long)stats.values_pushed[rows[i].other]);
    }
}

static void pulls_add_up(void **state)
{
    const struct ps_pull_section int8 = { .codec = CODEC_INT8, .n_keys = N },
                                 fp32 = { .codec = CODEC_FP32, .n_keys = 1 };
    struct traffic t = { 0 };
    struct ps_stats stats = { 0 };

    (void)state;
    traffic_pulled(&t, &int8, DIM);
    traffic_pulled(&t, &fp32, DIM);
    traffic_pulled(&t, &fp32, DIM);
    traffic_read(&t, &stats);
    assert_true(stats.rows_pulled == N + 2 && stats.rows_pushed == 0);
    assert_true(stats.values_pulled[CODEC_FP32] == 2 * DIM * 4);
    assert_true(stats.values_pulled[CODEC_INT8] >= N * DIM);
    assert_true(stats.values_pulled[CODEC_INT8] < 2 * N * DIM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_operation_counts_what_it_sends),
        cmocka_unit_test(pulls_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
