/* Linear layers by cublasLt: row-major against column-major, padding, what is fused and what is not, NaN, zero. */
#include "tests/unit/cuda/rig.h"

/* A layer's arrays on the host, and what float64 makes of them. */
struct layer {
    struct linear l;
    uint32_t ldy, ldm, shift;
    float *x, *w, *b, *dy, *below;
    double *y, *dx, *dw, *db;
};

static double *doubles(size_t n)
{
    return memory_alloc(n * sizeof(double) + 1);
}

static struct layer layer_of(struct rig *r, uint32_t n, uint32_t in, uint32_t out,
                             uint32_t slack)
{
    struct layer a = { .l = { .n = n, .in = in, .out = out },
                       .ldy = out + slack,
                       .ldm = in + slack,
                       .shift = slack };

    a.x = rig_random(r, (size_t)n * in);
    a.w = rig_random(r, (size_t)out * in);
    a.b = rig_random(r, out);
    a.dy = rig_random(r, (size_t)n * out);
    a.below = rig_random(r, (size_t)n * a.ldm);
    a.y = doubles((size_t)n * out);
    a.dx = doubles((size_t)n * in);
    a.dw = doubles((size_t)out * in);
    a.db = doubles(out);
    return a;
}

static void layer_free(struct layer *a)
{
    free(a->x), free(a->w), free(a->b), free(a->dy), free(a->below);
    free(a->y), free(a->dx), free(a->dw), free(a->db);
}

static void forward_in_double(struct layer *a, enum device_act act)
{
    for (size_t s = 0; s < a->l.n; s++)
        for (size_t o = 0; o < a->l.out; o++) {
            double sum = (double)a->b[o];

            for (size_t i = 0; i < a->l.in; i++)
                sum += (double)a->x[s * a->l.in + i] * (double)a->w[o * a->l.in + i];
            a->y[s * a->l.out + o] = act == DEVICE_RELU && sum < 0 ? 0 : sum;
        }
}

static void backward_in_double(struct layer *a, const struct relu_mask *mask)
{
    const size_t n = a->l.n, in = a->l.in, out = a->l.out;

    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; i < in; i++) {
            double sum = 0;

            for (size_t o = 0; o < out; o++)
                sum += (double)a->dy[s * out + o] * (double)a->w[o * in + i];
            if (mask)
                sum = a->below[s * a->ldm + i] > 0 ? sum * (double)mask->scale : 0;
            a->dx[s * in + i] = sum;
        }
    for (size_t o = 0; o < out; o++) {
        a->db[o] = 0;
        for (size_t s = 0; s < n; s++)
            a->db[o] += (double)a->dy[s * out + o];
        for (size_t i = 0; i < in; i++) {
            a->dw[o * in + i] = 0;
            for (size_t s = 0; s < n; s++)
                a->dw[o * in + i] += (double)a->dy[s * out + o] * (double)a->x[s * in + i];
        }
    }
}

static struct linear linear_on_device(struct rig *r, const struct layer *a)
{
    const size_t n = a->l.n, in = a->l.in, out = a->l.out;

    return (struct linear){ a->l.n,
                            a->l.in,
                            a->l.out,
                            rig_put(r, a->x, n * in, a->shift),
                            rig_put(r, a->w, out * in, a->shift),
                            rig_put(r, a->b, out, a->shift),
                            0 };
}

/* Of few numbers the products may cancel out. They are rounded by the size of what is added, not of the sum: a number
 * counts as a quarter at least. */
static double of_few(const double *want, size_t n, double tolerance)
{
    double norm = 0;

    for (size_t i = 0; i < n; i++)
        norm += want[i] * want[i];
    norm = sqrt(norm / (double)n);
    return norm > 0 && norm < 0.25 ? tolerance * 0.25 / norm : tolerance;
}

static void check_forward(struct rig *r, struct layer *a, enum device_act act, double tolerance)
{
    const size_t n = a->l.n, out = a->l.out;
    const struct linear l = linear_on_device(r, a);
    float *y = rig_floats(r, n * a->ldy), *got = memory_alloc(n * a->ldy * sizeof *got + 1);

    forward_in_double(a, act);
    ops->begin(r->c, 0, 0);
    ops->linear_forward(r->c, &l, act, y, a->ldy);
    ops->end(r->c, 0);
    rig_get(r, got, y, n * a->ldy);
    for (size_t s = 0; s < n; s++) {
        for (size_t o = out; o < a->ldy; o++)
            assert_true(got[s * a->ldy + o] == 0); /* between rows nothing is touched */
        memmove(got + s * out, got + s * a->ldy, out * sizeof *got);
    }
    rig_near("y", got, a->y, n * out, of_few(a->y, n * out, tolerance));
    free(got);
    rig_sweep(r);
}

static void check_backward(struct rig *r, struct layer *a, bool masked, double tolerance)
{
    const size_t n = a->l.n, in = a->l.in, out = a->l.out;
    const struct linear l = linear_on_device(r, a);
    const struct relu_mask mask = { rig_put(r, a->below, n * a->ldm, 0), a->ldm, 1.25f };
    const float *dy = rig_put(r, a->dy, n * out, a->shift);
    float *dx = rig_floats(r, n * in), *dw = rig_floats(r, out * in), *db = rig_floats(r, out);
    float *got = memory_alloc((n * in + out * in + out) * sizeof *got + 1),
          *sums = rig_floats(r, in);
    double *sums_want = doubles(in), *magnitudes = doubles(in);

    backward_in_double(a, masked ? &mask : NULL);
    ops->begin(r->c, 0, 0);
    ops->linear_backward(r->c, &l, dy, dx, masked ? &mask : NULL, dw, db, sums);
    ops->end(r->c, 0);
    rig_get(r, got, dx, n * in);
    rig_near("dx", got, a->dx, n * in, of_few(a->dx, n * in, tolerance));
    rig_get(r, got, dw, out * in);
    rig_near("dw", got, a->dw, out * in, of_few(a->dw, out * in, tolerance));
    rig_get(r, got, db, out);
    rig_near("db", got, a->db, out, tolerance);
    for (size_t i = 0; i < n * in; i++) {
        sums_want[i % in] += a->dx[i];
        magnitudes[i % in] += fabs(a->dx[i]);
    }
    rig_get(r, got, sums, in);
    for (size_t i = 0; i < in;
         i++) /* a sum that comes to little is as far off as its terms are large */
        got[i] = (float)(got[i] - sums_want[i] + magnitudes[i]);
    rig_near("sums", got, magnitudes, in, 2 * tolerance);
    free(magnitudes);
    free(sums_want);
    free(got);
    rig_sweep(r);
}

static void check_layer(struct rig *r, struct layer *a, double tolerance)
{
    assert_int_equal(ops->reserve(r->c, a->l.n, a->l.in, a->l.out), 0);
    check_forward(r, a, DEVICE_LINEAR, tolerance);
    check_forward(r, a, DEVICE_RELU, tolerance);
    check_backward(r, a, true, tolerance);
    check_backward(r, a, false, tolerance);
}

/* Twice what a product of usual size is held to: sums of few terms may come to little. */
static const struct {
    enum device_products products;
    double tolerance;
} kinds[] = {
    { DEVICE_FP32, 1e-5 }, { DEVICE_BLAS, 1e-5 }, { DEVICE_TF32, 2e-3 }, { DEVICE_BF16, 2e-2 }
};

/* Widths that need no padding, some, all that a small number can be; strides and addresses that fit and do not. */
static void layers_are_their_formula_in_each_kind_of_products(void **state)
{
    const uint64_t seed = rig_seed();

    (void)state;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct rig r = rig_open(seed, kinds[k].products);

        for (uint32_t i = 0; i < 24; i++) {
            const uint32_t n = fixture_below(&r.rng, i % 8 ? 24 : 90),
                           in = i % 3 ? 1 + fixture_below(&r.rng, 40)
                                      : 8 + 8 * fixture_below(&r.rng, 5),
                           out = i % 3 == 1 ? 1 + fixture_below(&r.rng, 40)
                                            : 8 + 8 * fixture_below(&r.rng, 5);
            struct layer a = layer_of(&r, n, in, out, i % 4 ? fixture_below(&r.rng, 4) : 0);

            check_layer(&r, &a, kinds[k].tolerance);
            layer_free(&a);
        }
        rig_close(&r);
    }
}

static void a_layer_of_one_output_is_fp32_in_all(void **state)
{
    const uint64_t seed = rig_seed();

    (void)state;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct rig r = rig_open(seed, kinds[k].products);
        struct layer a = layer_of(&r, 70, 37, 1, 1);

        check_layer(&r, &a, 1e-5);
        layer_free(&a);
        rig_close(&r);
    }
}

static struct emu_lt_counts products_of(enum device_products products, double tolerance,
                                        uint32_t in, uint32_t out)
{
    struct rig r = rig_open(3, products);
    struct layer a = layer_of(&r, 20, in, out, 0);
    struct emu_lt_counts counts;

    emu_lt_counts(NULL);
    check_layer(&r, &a, tolerance);
    emu_lt_counts(&counts);
    layer_free(&a);
    rig_close(&r);
    return counts;
}

/* The library's epilogues are taken where it has them, and what they do is done without where not. */
static void what_is_not_fused_is_done_after_the_product(void **state)
{
    (void)state;
    rig_needs_emulation();
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        const enum device_products products = kinds[k].products;
        const double tolerance = kinds[k].tolerance;
        struct emu_lt_counts all = products_of(products, tolerance, 24, 24), none;

        /* Two forward; two weight gradients of one plan; two dx of one plan. What is fused is tried first. */
        assert_int_equal(all.products, 8);
        assert_int_equal(all.fused, 4);
        if (products == DEVICE_BF16) { /* of a wide layer the sums are fused, too */
            all = products_of(products, tolerance, 24, 512);
            assert_int_equal(all.products, 9);
            assert_int_equal(all.fused, 7);
        }
        for (enum emu_lt_when when = EMU_LT_AT_ONCE; when <= EMU_LT_LATE; when++) {
            emu_lt_refuse(CUBLASLT_EPILOGUE_RELU_BIAS | CUBLASLT_EPILOGUE_BGRADB, when);
            none = products_of(products, tolerance, 24, 24);
            emu_lt_refuse(0, when);
            assert_int_equal(none.products, 6);
            assert_int_equal(none.fused, 0);
        }
    }
}

static void a_plan_is_made_once_for_each_shape(void **state)
{
    struct emu_lt_counts counts;
    struct layer a, b;
    struct rig r;

    (void)state;
    rig_needs_emulation();
    r = rig_open(rig_seed(), DEVICE_TF32);
    a = layer_of(&r, 20, 20, 24, 0);
    b = layer_of(&r, 12, 20, 24, 0);
    emu_lt_counts(NULL);
    for (int i = 0; i < 3; i++) {
        check_layer(&r, &a, 2e-3);
        check_layer(&r, &b, 2e-3);
    }
    emu_lt_counts(&counts);
    assert_int_equal(counts.heuristics, 2 * 4);
    layer_free(&a);
    layer_free(&b);
    rig_close(&r);
}

static void check_nan(struct rig *r)
{
    enum { IN = 24 }; /* products of few are no library's */
    struct layer a = layer_of(r, 9, IN, 16, 0);
    float got[9 * 16];
    struct linear l;
    float *y;

    a.x[2 * IN + 1] = NAN;
    l = linear_on_device(r, &a);
    y = rig_floats(r, 9 * 16);
    assert_int_equal(ops->reserve(r->c, 9, IN, 16), 0);
    ops->begin(r->c, 0, 0);
    ops->linear_forward(r->c, &l, DEVICE_RELU, y, 16);
    ops->end(r->c, 0);
    rig_get(r, got, y, 9 * 16);
    for (int i = 0; i < 9 * 16; i++)
        assert_true(isnan(got[i]) == (i / 16 == 2));
    layer_free(&a);
    rig_sweep(r);
}

static void a_nan_passes_through_relu_also_where_the_library_drops_it(void **state)
{
    struct emu_lt_counts kept, dropped;

    (void)state;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct rig r = rig_open(rig_seed(), kinds[k].products);

        emu_lt_counts(NULL);
        check_nan(&r);
        emu_lt_counts(&kept);
        rig_close(&r);
        emu_lt_relu(EMU_LT_DROPS_NAN);
        r = rig_open(rig_seed(), kinds[k].products);
        emu_lt_counts(NULL);
        check_nan(&r);
        emu_lt_counts(&dropped);
        rig_close(&r);
        emu_lt_relu(EMU_LT_KEEPS_NAN);
        if (emu_rt_is_real())
            continue;
        assert_int_equal(kept.fused, 2);    /* tried, and used */
        assert_int_equal(dropped.fused, 1); /* tried */
        assert_int_equal(dropped.products, 2);
    }
}

static void bias_gradients_are_floats_also_where_the_librarys_are_halves(void **state)
{
    (void)state;
    emu_lt_sums(EMU_LT_SUMS_HALVES);
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct rig r = rig_open(rig_seed(), kinds[k].products);
        struct layer a = layer_of(&r, 24, 16, 512, 0);

        assert_int_equal(ops->reserve(r.c, 24, 16, 512), 0);
        check_backward(&r, &a, false, kinds[k].tolerance);
        layer_free(&a);
        rig_close(&r);
    }
    emu_lt_sums(EMU_LT_SUMS_FLOATS);
}

/* Rows of x and of dx with zeros behind them, as the interaction leaves them. */
static void rows_with_gaps_are_read_and_written_in_place(void **state)
{
    enum { N = 20, IN = 13, OUT = 24, LD = 16 };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct rig r = rig_open(rig_seed(), kinds[k].products);
        struct layer a = layer_of(&r, N, IN, OUT, 0);
        struct linear l = linear_on_device(&r, &a);
        float x[N * LD] = { 0 }, got[N * LD];
        const float *dy = rig_put(&r, a.dy, N * OUT, 0);
        float *y = rig_floats(&r, N * OUT), *dx = rig_floats(&r, N * LD),
              *dw = rig_floats(&r, OUT * IN), *db = rig_floats(&r, OUT);

        for (size_t i = 0; i < N * IN; i++)
            x[i / IN * LD + i % IN] = a.x[i];
        l.x = rig_put(&r, x, N * LD, 0);
        l.ldx = LD;
        assert_int_equal(ops->reserve(r.c, N, IN, OUT), 0);
        forward_in_double(&a, DEVICE_RELU);
        backward_in_double(&a, NULL);
        ops->begin(r.c, 0, 0);
        ops->linear_forward(r.c, &l, DEVICE_RELU, y, OUT);
        ops->linear_backward(r.c, &l, dy, dx, NULL, dw, db, NULL);
        ops->end(r.c, 0);
        rig_get(&r, got, y, N * LD);
        rig_near("y", got, a.y, N * LD, kinds[k].tolerance);
        rig_get(&r, got, dx, N * LD);
        for (size_t i = 0; i < N * IN; i++)
            got[i] = got[i / IN * LD + i % IN];
        rig_near("dx", got, a.dx, N * IN, kinds[k].tolerance);
        rig_get(&r, got, dw, OUT * IN);
        rig_near("dw", got, a.dw, OUT * IN, kinds[k].tolerance);
        rig_get(&r, got, db, OUT);
        rig_near("db", got, a.db, OUT, kinds[k].tolerance);
        layer_free(&a);
        rig_close(&r);
    }
}

/* In TF32 they are sums of fp32, by a kernel of ours. */
static void layers_of_few_inputs_are_exact_in_tf32(void **state)
{
    static const uint32_t n_of[] = { 0, 1, 127, 128, 129, 300 };
    static const uint32_t outs[] = { 2, 3, 4, 64, 130, 512, 516, 700 };

    (void)state;
    for (uint32_t i = 0; i < COUNT_OF(n_of) * COUNT_OF(outs); i++) {
        struct rig r = rig_open(rig_seed() + i, DEVICE_TF32);
        struct layer a =
            layer_of(&r, n_of[i / COUNT_OF(outs)], 1 + i % 16, outs[i % COUNT_OF(outs)], i % 3);
        struct emu_lt_counts counts;

        assert_int_equal(ops->reserve(r.c, a.l.n, a.l.in, a.l.out), 0);
        emu_lt_counts(NULL);
        check_forward(&r, &a, i % 2 ? DEVICE_RELU : DEVICE_LINEAR, 1e-6);
        emu_lt_counts(&counts);
        assert_int_equal(counts.products, 0);
        layer_free(&a);
        rig_close(&r);
    }
}

static void a_nan_stays_in_its_sample_of_few_inputs(void **state)
{
    enum { N = 9, IN = 13, OUT = 16 };
    struct rig r = rig_open(rig_seed(), DEVICE_TF32);
    struct layer a = layer_of(&r, N, IN, OUT, 0);
    float got[N * OUT], *y = rig_floats(&r, N * OUT);
    struct linear l;

    (void)state;
    a.x[2 * IN + 12] = NAN;
    l = linear_on_device(&r, &a);
    ops->begin(r.c, 0, 0);
    ops->linear_forward(r.c, &l, DEVICE_RELU, y, OUT);
    ops->end(r.c, 0);
    rig_get(&r, got, y, N * OUT);
    for (int i = 0; i < N * OUT; i++)
        assert_true(isnan(got[i]) == (i / OUT == 2));
    layer_free(&a);
    rig_close(&r);
}

static void what_is_not_wanted_is_not_made(void **state)
{
    struct rig r = rig_open(rig_seed(), DEVICE_TF32);
    struct layer a = layer_of(&r, 20, 16, 24, 0);
    struct linear l = linear_on_device(&r, &a);
    const float *dy = rig_put(&r, a.dy, 20 * 24, 0);
    float *out = rig_floats(&r, 24 * 17);
    struct emu_lt_counts counts;

    (void)state;
    assert_int_equal(ops->reserve(r.c, 20, 16, 24), 0);
    emu_lt_counts(NULL);
    ops->begin(r.c, 0, 0);
    ops->linear_backward(r.c, &l, dy, NULL, NULL, out, out + 24 * 16, NULL);
    ops->linear_backward(r.c, &l, dy, out, NULL, NULL, NULL, NULL);
    ops->end(r.c, 0);
    rig_wait(&r, 0);
    emu_lt_counts(&counts);
    assert_true(emu_rt_is_real() || counts.products == 2);
    layer_free(&a);
    rig_close(&r);
}

static void the_gradients_of_no_samples_are_zero(void **state)
{
    struct rig r = rig_open(rig_seed(), DEVICE_BF16);

    (void)state;
    for (uint32_t out = 1; out < 20; out += 9) {
        float *start = rig_random(&r, out * 6), got[20 * 6];
        const struct linear l = {
            0, 5, out, rig_floats(&r, 1), rig_floats(&r, 5 * out), NULL, 0
        };
        float *dw = rig_put(&r, start, out * 6, 0), *db = dw + out * 5;

        assert_int_equal(ops->reserve(r.c, 10, 5, out), 0);
        ops->begin(r.c, 0, 0);
        ops->linear_forward(r.c, &l, DEVICE_RELU, dw, out);
        ops->linear_backward(r.c, &l, rig_floats(&r, 1), NULL, NULL, dw, db, NULL);
        ops->end(r.c, 0);
        rig_get(&r, got, dw, out * 6);
        for (uint32_t i = 0; i < out * 6; i++)
            assert_true(got[i] == 0);
        free(start);
        rig_sweep(&r);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_their_formula_in_each_kind_of_products),
        cmocka_unit_test(a_layer_of_one_output_is_fp32_in_all),
        cmocka_unit_test(what_is_not_fused_is_done_after_the_product),
        cmocka_unit_test(a_plan_is_made_once_for_each_shape),
        cmocka_unit_test(a_nan_passes_through_relu_also_where_the_library_drops_it),
        cmocka_unit_test(bias_gradients_are_floats_also_where_the_librarys_are_halves),
        cmocka_unit_test(rows_with_gaps_are_read_and_written_in_place),
        cmocka_unit_test(layers_of_few_inputs_are_exact_in_tf32),
        cmocka_unit_test(a_nan_stays_in_its_sample_of_few_inputs),
        cmocka_unit_test(what_is_not_wanted_is_not_made),
        cmocka_unit_test(the_gradients_of_no_samples_are_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
