/* Encoders: the CPU's bytes, and what is residual, bit for bit. */
#include "proto/codec_catalog.h"
#include "tests/unit/cuda/lab.h"

static cudaError_t run_encode(void *arg)
{
    return kernels_encode(NULL, arg);
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

/* Rows to encode: from where, with which residual. */
enum { N_MAX = 8, ROWS = 11 };

/* n of ROWS, each at most once, some of them none. */
static uint32_t *draw_places(struct lab *lab, uint32_t n)
{
    uint32_t *at = lab_blank(lab, n * sizeof *at, 0), all[ROWS];

    for (uint32_t i = 0; i < ROWS; i++)
        all[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = i + lab_below(lab, ROWS - i), row = all[other];

        all[other] = all[i];
        at[i] = lab_below(lab, 4) ? row : DEVICE_NONE;
    }
    return at;
}

/* Rows in order or from anywhere; nothing residual, to all, or to some. */
enum error_feedback_index { NO_RESIDUALS, ALL_RESIDUALS, SOME_RESIDUALS, RESIDUALS_END };

static struct device_encode draw_encode(struct lab *lab, enum codec_id codec, uint32_t dim,
                                        uint32_t kind, enum error_feedback_index residual)
{
    uint32_t *n = lab_blank(lab, sizeof *n, 0);
    float *rows = lab_floats(lab, (size_t)ROWS * dim, 0);
    struct device_encode e = { .codec = codec,
                               .dim = dim,
                               .k = 1 + lab_below(lab, dim),
                               .n_max = N_MAX,
                               .n = n,
                               .rows = rows };

    *n = lab_below(lab, N_MAX + 1);
    spoil(lab, rows, (size_t)ROWS * dim, kind);
    e.from = lab_below(lab, 2) ? draw_places(lab, *n) : NULL;
    e.residual_at = residual == SOME_RESIDUALS ? draw_places(lab, *n) : NULL;
    e.bytes = lab_blank(lab, *n * codec_by_id(codec)->row_bytes(dim, e.k), lab_below(lab, 4));
    e.residual =
        residual != NO_RESIDUALS ? lab_blank(lab, (size_t)ROWS * dim * sizeof(float), 0) : NULL;
    return e;
}

/* Runs it in each order, and on the CPU. */
static void check_encode(struct lab *lab, const struct device_encode *e, const float *start)
{
    const size_t n_bytes = *e->n * codec_by_id(e->codec)->row_bytes(e->dim, e->k),
                 n_residuals = e->residual ? (size_t)ROWS * e->dim : 0;
    struct device_encode device = *e, cpu = *e;

    cpu.bytes = lab_blank(lab, n_bytes, 0);
    if (n_residuals) {
        cpu.residual = lab_blank(lab, n_residuals * sizeof(float), 0);
        memcpy(cpu.residual, start, n_residuals * sizeof(float));
    }
    lab_each_order(lab, run_encode, &device,
                   (struct lab_out[]){ { e->bytes, n_bytes, NULL },
                                       { e->residual, n_residuals * sizeof(float), start },
                                       { 0 } });
    device_cpu.encode(lab->cpu, &cpu);
    assert_memory_equal(e->bytes, cpu.bytes, n_bytes);
    lab_same(e->residual, cpu.residual, n_residuals);
}

static void rows_and_residuals_have_the_cpus_bits(void **state)
{
    struct lab *lab = *state;

    for (enum codec_id codec = 0; codec < CODEC_ID_END; codec++)
        for (uint32_t i = 0; i < 60; i++) {
            const uint32_t dim = dim_of(lab, i / 3);
            const struct device_encode e =
                draw_encode(lab, codec, dim, lab_below(lab, 5),
                            (enum error_feedback_index)(i % RESIDUALS_END));
            float *start = lab_floats(lab, (size_t)ROWS * dim, 0);

            spoil(lab, start, (size_t)ROWS * dim, (uint32_t[]){ 0, 1, 3, 4 }[i % 4]);
            check_encode(lab, &e, start);
            lab_sweep(lab);
        }
}

/* One bad float in a row, wherever it is: the servers see it, and what is residual is as it was. */
static void values_that_are_not_finite_are_sent_and_leave_no_residual(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    const uint32_t dim = 300, k = 7;
    struct lab *lab = *state;

    for (enum codec_id codec = CODEC_ONEBIT; codec <= CODEC_TOPK; codec++)
        for (uint32_t at = 0; at < dim; at += 13) {
            float *rows = lab_floats(lab, dim, 0), *residual = lab_floats(lab, dim, 0),
                  *before = lab_blank(lab, dim * sizeof *before, 0);
            uint32_t *n = lab_blank(lab, sizeof *n, 0);
            const struct device_encode e = { .codec = codec,
                                             .dim = dim,
                                             .k = k,
                                             .n_max = 1,
                                             .n = n,
                                             .rows = rows,
                                             .residual = residual,
                                             .bytes = lab_blank(lab, 4 * dim, 0) };

            *n = 1;
            rows[at] = bad[at % COUNT_OF(bad)];
            memcpy(before, residual, dim * sizeof *before);
            lab_ran(kernels_encode(NULL, &e));
            assert_int_equal(codec_by_id(codec)->check(e.bytes, dim, k, CODEC_FINITE), PS_ENAN);
            lab_same(residual, before, dim);
            lab_sweep(lab);
        }
}

static void a_codec_that_there_is_not_is_no_launch(void **state)
{
    const struct device_encode e = { .codec = CODEC_ID_END };

    (void)state;
    assert_int_equal(kernels_encode(NULL, &e), cudaErrorInvalidValue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_residuals_have_the_cpus_bits),
        cmocka_unit_test(values_that_are_not_finite_are_sent_and_leave_no_residual),
        cmocka_unit_test(a_codec_that_there_is_not_is_no_launch),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
