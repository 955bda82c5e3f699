/* Kernels of matrix products: each that runs here against its plain version, bit for bit,
 * and bf16 against sums in double. */
#include <math.h>

#include "tests/unit/model/fixture.h"
#include "worker/compute/gemm_kernels.h"

static uint32_t panels(uint32_t n)
{
    return (n + 15) / 16;
}

static uint32_t depth(uint32_t n_k)
{
    return (n_k + 31) / 32;
}

/* Numbers of many sizes, with zeros of both signs and denormals among them. */
static float *floats(struct fixture_rng *rng, size_t n)
{
    float *x = memory_alloc(n * sizeof *x + 1);

    for (size_t i = 0; i < n; i++) {
        const uint32_t kind = fixture_below(rng, 32);

        x[i] = ldexpf(fixture_float(rng, 1), (int)fixture_below(rng, 12) - 6);
        if (kind == 0)
            x[i] = copysignf(0, x[i]);
        if (kind == 1)
            x[i] = ldexpf(x[i], -125);
    }
    return x;
}

/* Both packings of both, a [m][k] from rows or from its transpose, b [k][n] likewise. */
struct operands {
    uint32_t m, n, k;
    float *a, *b, *a_turned, *b_turned;
};

static float *turned(const float *x, uint32_t rows, uint32_t cols)
{
    float *to = memory_alloc((size_t)rows * cols * sizeof *to + 1);

    for (uint32_t i = 0; i < rows * cols; i++)
        to[(size_t)(i % cols) * rows + i / cols] = x[i];
    return to;
}

static struct operands operands_new(struct fixture_rng *rng, uint32_t m, uint32_t n, uint32_t k)
{
    struct operands o = { .m = m, .n = n, .k = k };

    o.a = floats(rng, (size_t)m * k);
    o.b = floats(rng, (size_t)k * n);
    o.a_turned = turned(o.a, m, k);
    o.b_turned = turned(o.b, k, n);
    return o;
}

static void operands_free(struct operands *o)
{
    free(o->a), free(o->b), free(o->a_turned), free(o->b_turned);
}

/* x [n_rows][n_cols], whose columns are k. */
static uint16_t *packed_by_rows(gemm_kernels_rows *pack, uint32_t tile, const float *x,
                                uint32_t n_rows, uint32_t n_cols,
                                enum gemm_kernels_layout layout)
{
    const size_t stride = (size_t)depth(n_cols) * tile;
    uint16_t *tiles = memory_alloc(panels(n_rows) * stride * sizeof *tiles + 1);

    for (uint32_t r = 0; r < n_rows; r += 16)
        pack(&(struct gemm_kernels_source){ x + (size_t)r * n_cols, n_cols,
                                            n_rows - r < 16 ? n_rows - r : 16, n_cols },
             layout, tiles + r / 16 * stride);
    return tiles;
}

/* x [n_rows][n_cols], whose rows are k. */
static uint16_t *packed_by_pairs(gemm_kernels_pairs *pack, uint32_t tile, const float *x,
                                 uint32_t n_rows, uint32_t n_cols,
                                 enum gemm_kernels_layout layout)
{
    const size_t stride = (size_t)depth(n_rows) * tile;
    uint16_t *tiles = memory_alloc(panels(n_cols) * stride * sizeof *tiles + 1);

    for (uint32_t r = 0; r < n_rows; r += 32)
        pack(&(struct gemm_kernels_source){ x + (size_t)r * n_cols, n_cols,
                                            n_rows - r < 32 ? n_rows - r : 32, n_cols },
             layout, tiles + (size_t)(r / 32) * tile, stride);
    return tiles;
}

static void check_packing(const struct gemm_kernels *kernel, const struct operands *o)
{
    const size_t a_bytes = (size_t)panels(o->m) * depth(o->k) * kernel->tile * 2,
                 b_bytes = (size_t)panels(o->n) * depth(o->k) * kernel->tile * 2;
    uint16_t *want = packed_by_rows(kernel->rows_plain, kernel->tile, o->a, o->m, o->k,
                                    GEMM_KERNELS_STRAIGHT);
    uint16_t *got =
        packed_by_rows(kernel->rows, kernel->tile, o->a, o->m, o->k, GEMM_KERNELS_STRAIGHT);

    assert_memory_equal(got, want, a_bytes);
    free(got);
    got = packed_by_pairs(kernel->pairs, kernel->tile, o->a_turned, o->k, o->m,
                          GEMM_KERNELS_TRANSPOSED);
    assert_memory_equal(got, want, a_bytes);
    free(got), free(want);
    want = packed_by_pairs(kernel->pairs_plain, kernel->tile, o->b, o->k, o->n,
                           GEMM_KERNELS_STRAIGHT);
    got = packed_by_pairs(kernel->pairs, kernel->tile, o->b, o->k, o->n, GEMM_KERNELS_STRAIGHT);
    assert_memory_equal(got, want, b_bytes);
    free(got);
    got = packed_by_rows(kernel->rows, kernel->tile, o->b_turned, o->n, o->k,
                         GEMM_KERNELS_TRANSPOSED);
    assert_memory_equal(got, want, b_bytes);
    free(got), free(want);
}

static void check_product(const struct gemm_kernels *kernel, const struct operands *o,
                          struct fixture_rng *rng)
{
    const size_t stride = (size_t)depth(o->k) * kernel->tile;
    const uint32_t ldc = 16 * panels(o->n) + fixture_below(rng, 3), rows = 16 * panels(o->m);
    uint16_t *a =
        packed_by_rows(kernel->rows, kernel->tile, o->a, o->m, o->k, GEMM_KERNELS_STRAIGHT);
    uint16_t *b =
        packed_by_pairs(kernel->pairs, kernel->tile, o->b, o->k, o->n, GEMM_KERNELS_STRAIGHT);
    const struct gemm_kernels_panels pa = { a, stride, panels(o->m) },
                                     pb = { b, stride, panels(o->n) };
    float *c = floats(rng, (size_t)rows * ldc),
          *want = memory_alloc((size_t)rows * ldc * sizeof *c);

    memcpy(want, c, (size_t)rows * ldc * sizeof *c);
    for (int add = 0; add < 2; add++) {
        const enum gemm_kernels_start start = add ? GEMM_KERNELS_ADD : GEMM_KERNELS_SET;

        kernel->multiply(&pa, &pb, depth(o->k), start, c, ldc);
        kernel->multiply_plain(&pa, &pb, depth(o->k), start, want, ldc);
        for (size_t i = 0; i < (size_t)rows * ldc; i++)
            if (memcmp(&c[i], &want[i], sizeof *c))
                fail_msg("%s %ux%ux%u: [%zu] is %.9g, the plain version says %.9g",
                         kernel->name, o->m, o->n, o->k, i, (double)c[i], (double)want[i]);
    }
    free(a), free(b), free(c), free(want);
}

static void a_kernel_is_its_plain_version_bit_for_bit(void **state)
{
    struct fixture_rng rng = { seed_of_run(4712), 0 };
    const struct gemm_kernels *kernel;

    (void)state;
    for (uint32_t i = 0; (kernel = gemm_kernels_at(i)) != NULL; i++) {
        if (!kernel->runs())
            continue;
        print_message("%s\n", kernel->name);
        for (uint32_t width = 1; width <= 40; width++) {
            struct operands o = operands_new(&rng, width, 1 + fixture_below(&rng, 70),
                                             1 + fixture_below(&rng, 70));

            check_packing(kernel, &o);
            check_product(kernel, &o, &rng);
            operands_free(&o);
        }
    }
}

/* |c - sum| <= (2^-8 twice, and half a percent of room for the sums) * sum of |products| */
static void a_product_is_within_two_roundings_of_bf16(void **state)
{
    struct fixture_rng rng = { seed_of_run(4712), 0 };
    const struct gemm_kernels *kernel = gemm_kernels_best(DEVICE_BF16);
    const uint32_t m = 33, n = 47, k = 513;
    struct operands o;
    uint16_t *a, *b;
    float *c;

    (void)state;
    if (!kernel) {
        print_message("skipped: this CPU has no tile kernel of bfloat16\n");
        skip();
    }
    o = operands_new(&rng, m, n, k);
    a = packed_by_rows(kernel->rows, kernel->tile, o.a, m, k, GEMM_KERNELS_STRAIGHT);
    b = packed_by_pairs(kernel->pairs, kernel->tile, o.b, k, n, GEMM_KERNELS_STRAIGHT);
    c = memory_alloc((size_t)48 * 48 * sizeof *c);
    kernel->multiply(&(struct gemm_kernels_panels){ a, (size_t)depth(k) * kernel->tile, 3 },
                     &(struct gemm_kernels_panels){ b, (size_t)depth(k) * kernel->tile, 3 },
                     depth(k), GEMM_KERNELS_SET, c, 48);
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double sum = 0, size = 0;

            for (uint32_t p = 0; p < k; p++) {
                sum += (double)o.a[i * k + p] * (double)o.b[p * n + j];
                size += fabs((double)o.a[i * k + p] * (double)o.b[p * n + j]);
            }
            assert_true(fabs((double)c[i * 48 + j] - sum) <= 0.0081 * size + 1e-30);
        }
    free(a), free(b), free(c);
    operands_free(&o);
}

static void rounding_is_to_nearest_even_and_keeps_what_is_no_number(void **state)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = { { 0x3f800000, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 },
                  { 0x3f808001, 0x3f81 }, { 0x7f7fffff, 0x7f80 }, { 0x7f800000, 0x7f80 },
                  { 0xff800000, 0xff80 }, { 0x7f800001, 0x7fc0 }, { 0xffc00000, 0xffc0 },
                  { 0x80000000, 0x8000 }, { 0x807fffff, 0x8000 }, { 0x00800000, 0x0080 } };
    const struct gemm_kernels *first = gemm_kernels_at(0),
                              *kernel = gemm_kernels_best(DEVICE_BF16);

    (void)state;
    if (!first)
        skip();
    assert_int_equal(first->products, DEVICE_BF16);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint16_t tile[GEMM_KERNELS_BF16];
        float x;
        const struct gemm_kernels_source one = { &x, 1, 1, 1 };

        memcpy(&x, &cases[i].from, sizeof x);
        first->rows_plain(&one, GEMM_KERNELS_STRAIGHT, tile);
        assert_int_equal(tile[0], cases[i].to);
        if (kernel) {
            kernel->rows(&one, GEMM_KERNELS_STRAIGHT, tile);
            assert_int_equal(tile[0], cases[i].to);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_its_plain_version_bit_for_bit),
        cmocka_unit_test(a_product_is_within_two_roundings_of_bf16),
        cmocka_unit_test(rounding_is_to_nearest_even_and_keeps_what_is_no_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
