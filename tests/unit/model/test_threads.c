/* What the speed of a step must not change: threads, fused ops and bf16 products against one
 * thread, plain ops and fp32; and no memory is asked for on the way. */
#include <math.h>
#include <stdatomic.h>

#include "tests/unit/model/fixture.h"
#include "worker/compute/device.h"

static const struct device_ops *const ops = &device_cpu;

static const struct dlrm_config plain = { .batch_max = 700,
                                          .n_numeric = 5,
                                          .n_fields = 7,
                                          .dim = 16,
                                          .n_bottom = 2,
                                          .bottom = { 70, 40 },
                                          .n_top = 2,
                                          .top = { 300, 33 },
                                          .seed = 3 };

/* Everything that a step computes, in one array. */
struct outcome {
    float *x;
    size_t n;
};

static void append(struct outcome *o, const float *x, size_t n)
{
    o->x = memory_try_realloc(o->x, (o->n + n + 1) * sizeof *x);
    assert_non_null(o->x);
    if (n)
        memcpy(o->x + o->n, x, n * sizeof *x);
    o->n += n;
}

static struct outcome step(const struct dlrm_config *config, uint32_t n, uint32_t n_threads,
                           bool bf16)
{
    struct fixture_rng rng = { 21, 0 };
    struct dlrm_config c = *config;
    struct outcome o = { 0 };
    struct fixture f;
    float loss;

    c.n_threads = n_threads;
    c.products = bf16 ? DEVICE_BF16 : DEVICE_FP32;
    fixture_init(&f, &c, n, &rng);
    fixture_step(&f, 5);
    loss = (float)f.loss;
    append(&o, &loss, 1);
    append(&o, fixture_read(&f, "prob"), n);
    append(&o, f.row_grads, (size_t)f.batch.n_unique * c.dim);
    if (c.wide)
        append(&o, f.wide_grads, f.batch.n_unique);
    for (uint32_t i = 0; i < dlrm_n_tensors(f.m); i++)
        append(&o, dlrm_tensor(f.m, i)->grads, dlrm_tensor(f.m, i)->n_floats);
    fixture_deinit(&f);
    return o;
}

static void check_threads(const struct dlrm_config *config)
{
    static const uint32_t sizes[] = { 0, 1, 65, 515 };

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct outcome one = step(config, sizes[i], 1, bf16);

            for (uint32_t n_threads = 2; n_threads <= 3; n_threads++) {
                struct outcome more = step(config, sizes[i], n_threads, bf16);

                assert_int_equal(one.n, more.n);
                if (memcmp(one.x, more.x, one.n * sizeof *one.x))
                    fail_msg("%u samples: %u threads give other bits than one", sizes[i],
                             n_threads);
                free(more.x);
            }
            free(one.x);
        }
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    check_threads(&config);
    config.wide = config.batch_norm = config.self_interaction = true;
    config.dropout = 0.3f;
    config.l2_dense = config.l2_rows = 0.1f;
    config.dim = 19;
    check_threads(&config);
    config.concat = true;
    check_threads(&config);
    fixture_turn_into(&config, MODEL_DCNV2);
    config.n_cross = 2;
    check_threads(&config);
    config.cross_rank = 7;
    config.wide = false;
    config.n_tasks = 2;
    config.task_weights[0] = 1, config.task_weights[1] = 0.5f;
    check_threads(&config);
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, size_t n)
{
    double off = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    return sqrt(off / size);
}

/* Of the norm of all that it computes. Roundings of up to 2^-9 pass through five layers and
 * back, and turn a few ReLUs. */
static void bf16_products_move_a_step_by_less_than_three_percent(void **state)
{
    static const uint32_t sizes[] = { 33, 700 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct outcome exact = step(&plain, sizes[i], 1, false),
                       rough = step(&plain, sizes[i], 2, true);
        const double off = distance(rough.x, exact.x, exact.n);

        print_message("%u samples: %.5f\n", sizes[i], off);
        assert_true(off < 0.03);
        free(exact.x), free(rough.x);
    }
}

struct layer {
    struct linear l;
    struct relu_mask mask;
    float *x, *w, *b, *dy, *below, *y, *dx, *dw, *db;
};

static float *floats(struct fixture_rng *rng, size_t n)
{
    float *x = memory_alloc(n * sizeof *x + 1);

    fixture_fill(rng, x, n, 1);
    return x;
}

static struct layer layer_new(struct fixture_rng *rng, uint32_t n, uint32_t in, uint32_t out)
{
    struct layer a = { .x = floats(rng, (size_t)n * in),
                       .w = floats(rng, (size_t)in * out),
                       .b = floats(rng, out),
                       .dy = floats(rng, (size_t)n * out),
                       .below = floats(rng, (size_t)n * in),
                       .y = floats(rng, (size_t)n * out),
                       .dx = floats(rng, (size_t)n * in),
                       .dw = floats(rng, (size_t)in * out),
                       .db = floats(rng, out) };

    a.l = (struct linear){ n, in, out, a.x, a.w, a.b, 0 };
    a.mask = (struct relu_mask){ a.below, in, 1.5f };
    return a;
}

static void layer_free(struct layer *a)
{
    free(a->x), free(a->w), free(a->b), free(a->dy), free(a->below);
    free(a->y), free(a->dx), free(a->dw), free(a->db);
}

static struct compute *opened(uint32_t n_threads, enum device_products products)
{
    struct compute *c;

    assert_int_equal(
        ops->open(&(struct device_options){ .n_threads = n_threads, .products = products }, &c,
                  NULL),
        0);
    return c;
}

/* Bit for bit. */
static void check_fused(struct compute *c, struct layer *a)
{
    const size_t n_y = (size_t)a->l.n * a->l.out, n_x = (size_t)a->l.n * a->l.in;
    float *y = memory_alloc(n_y * sizeof *y + 1), *dx = memory_alloc(n_x * sizeof *dx + 1);
    float *none = memory_alloc(a->l.out * sizeof *none);
    const struct linear without = { a->l.n, a->l.in, a->l.out, a->x, a->w, none, 0 };

    ops->linear_forward(c, &without, DEVICE_LINEAR, y, a->l.out);
    ops->linear_forward(c, &a->l, DEVICE_RELU, a->y, a->l.out);
    for (size_t i = 0; i < n_y; i++) {
        const float v = y[i] + a->b[i % a->l.out];

        assert_true(a->y[i] == (v > 0 ? v : 0));
    }
    ops->linear_backward(c, &a->l, a->dy, dx, NULL, a->dw, a->db, NULL);
    ops->linear_backward(c, &a->l, a->dy, a->dx, &a->mask, NULL, NULL, NULL);
    for (size_t i = 0; i < n_x; i++)
        assert_true(a->dx[i] == (a->below[i] > 0 ? dx[i] * 1.5f : 0));
    free(y), free(dx), free(none);
}

static void fused_ops_are_the_plain_ones_in_a_row(void **state)
{
    struct fixture_rng rng = { 22, 0 };

    (void)state;
    for (int products = DEVICE_FP32; products <= DEVICE_BLAS; products++) {
        struct compute *c = opened(2, (enum device_products)products);

        for (uint32_t width = 1; width <= 40; width++) {
            struct layer a =
                layer_new(&rng, fixture_below(&rng, 200), width, 1 + fixture_below(&rng, 150));

            assert_int_equal(ops->reserve(c, a.l.n, a.l.in, a.l.out), 0);
            check_fused(c, &a);
            layer_free(&a);
        }
        ops->close(c);
    }
}

static void nor_does_it_change_openblas(void **state)
{
    struct fixture_rng rng = { 26, 0 };
    struct compute *one = opened(1, DEVICE_BLAS), *two = opened(2, DEVICE_BLAS);

    (void)state;
    assert_non_null(strstr(ops->describe(two), "OpenBLAS"));
    for (int i = 0; i < 20; i++) {
        struct layer a = layer_new(&rng, fixture_below(&rng, 600), 1 + fixture_below(&rng, 100),
                                   1 + fixture_below(&rng, 500));
        const size_t n_y = (size_t)a.l.n * a.l.out, n_x = (size_t)a.l.n * a.l.in,
                     n_w = (size_t)a.l.in * a.l.out;
        struct layer b = layer_new(&rng, a.l.n, a.l.in, a.l.out);

        assert_int_equal(ops->reserve(one, a.l.n, a.l.in, a.l.out), 0);
        assert_int_equal(ops->reserve(two, a.l.n, a.l.in, a.l.out), 0);
        ops->linear_forward(one, &a.l, DEVICE_RELU, a.y, a.l.out);
        ops->linear_forward(two, &a.l, DEVICE_RELU, b.y, a.l.out);
        ops->linear_backward(one, &a.l, a.dy, a.dx, &a.mask, a.dw, a.db, NULL);
        ops->linear_backward(two, &a.l, a.dy, b.dx, &a.mask, b.dw, b.db, NULL);
        assert_memory_equal(a.y, b.y, n_y * sizeof *a.y);
        assert_memory_equal(a.dx, b.dx, n_x * sizeof *a.dx);
        assert_memory_equal(a.dw, b.dw, n_w * sizeof *a.dw);
        assert_memory_equal(a.db, b.db, a.l.out * sizeof *a.db);
        layer_free(&a);
        layer_free(&b);
    }
    ops->close(one);
    ops->close(two);
}

/* To within 1 percent of the size of what is summed: two roundings of 2^-9 each, and the
 * sum's own. */
static void check_rounded(const struct layer *a)
{
    const size_t n = a->l.n, in = a->l.in, out = a->l.out;

    for (size_t k = 0; k < n * out; k++) {
        double want = (double)a->b[k % out], size = 0;

        for (size_t i = 0; i < in; i++) {
            const double p = (double)a->x[k / out * in + i] * (double)a->w[k % out * in + i];

            want += p;
            size += fabs(p);
        }
        assert_true(fabs((double)a->y[k] - want) <= 0.01 * size + 1e-6);
    }
    for (size_t k = 0; k < out * in; k++) {
        double want = 0, size = 0;

        for (size_t s = 0; s < n; s++) {
            const double p = (double)a->dy[s * out + k / in] * (double)a->x[s * in + k % in];

            want += p;
            size += fabs(p);
        }
        assert_true(fabs((double)a->dw[k] - want) <= 0.01 * size + 1e-6);
    }
    for (size_t k = 0; k < n * in; k++) {
        double want = 0, size = 0;

        for (size_t o = 0; o < out; o++) {
            const double p = (double)a->dy[k / in * out + o] * (double)a->w[o * in + k % in];

            want += p;
            size += fabs(p);
        }
        assert_true(fabs((double)a->dx[k] - want) <= 0.01 * size + 1e-6);
    }
}

static void a_layer_in_bf16_is_its_formula_to_within_the_rounding(void **state)
{
    struct fixture_rng rng = { 23, 0 };
    struct compute *c = opened(2, DEVICE_BF16);

    (void)state;
    for (uint32_t width = 1; width <= 40; width++) {
        struct layer a =
            layer_new(&rng, fixture_below(&rng, 150), width, 1 + fixture_below(&rng, 100));

        assert_int_equal(ops->reserve(c, a.l.n, a.l.in, a.l.out), 0);
        ops->linear_forward(c, &a.l, DEVICE_LINEAR, a.y, a.l.out);
        ops->linear_backward(c, &a.l, a.dy, a.dx, NULL, a.dw, a.db, NULL);
        check_rounded(&a);
        layer_free(&a);
    }
    ops->close(c);
}

static void what_is_no_number_is_seen_in_the_outcome(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct fixture_rng rng = { 24, 0 };
        struct dlrm_config config = plain;
        const float *probs;
        struct fixture f;

        config.n_threads = 2;
        config.products = bf16 ? DEVICE_BF16 : DEVICE_FP32;
        fixture_init(&f, &config, 100, &rng);
        f.batch.numeric[7 * 5] = NAN;
        fixture_step(&f, 0);
        probs = fixture_read(&f, "prob");
        assert_true(isnan(probs[7]) && !isnan(probs[8]));
        assert_true(isnan(f.loss));
        assert_true(isnan(dlrm_tensor(f.m, dlrm_n_tensors(f.m) - 1)->grads[0]));
        f.batch.numeric[7 * 5] = INFINITY;
        fixture_step(&f, 0);
        probs = fixture_read(&f, "prob");
        assert_true(!isfinite(probs[7]) || probs[7] == 0 || probs[7] == 1);
        fixture_deinit(&f);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

/* Of gcc's runtime; its header is not shipped with every compiler. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static atomic_uint n_mallocs;

static void on_malloc(const volatile void *block, size_t n_bytes)
{
    (void)block;
    (void)n_bytes;
    atomic_fetch_add(&n_mallocs, 1);
}

static void on_free(const volatile void *block)
{
    (void)block;
}

static void a_step_asks_for_no_memory(void **state)
{
    (void)state;
    assert_true(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct fixture_rng rng = { 25, 0 };
        struct dlrm_config config = plain;
        struct fixture f;
        unsigned before = n_mallocs;

        config.n_threads = 2;
        config.products = bf16 ? DEVICE_BF16 : DEVICE_FP32;
        config.batch_norm = config.wide = true;
        config.dropout = 0.2f;
        fixture_init(&f, &config, 600, &rng);
        assert_true(n_mallocs > before); /* the hook hears them */
        fixture_step(&f, 0);             /* OpenBLAS takes its buffers once */
        before = n_mallocs;
        for (uint64_t i = 1; i < 20; i++)
            fixture_step(&f, i);
        assert_int_equal(n_mallocs - before, 0);
        fixture_deinit(&f);
    }
}

#else

static void a_step_asks_for_no_memory(void **state)
{
    (void)state;
    print_message("skipped: only a sanitizer hears of every allocation\n");
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(nor_does_it_change_openblas),
        cmocka_unit_test(bf16_products_move_a_step_by_less_than_three_percent),
        cmocka_unit_test(fused_ops_are_the_plain_ones_in_a_row),
        cmocka_unit_test(a_layer_in_bf16_is_its_formula_to_within_the_rounding),
        cmocka_unit_test(what_is_no_number_is_seen_in_the_outcome),
        cmocka_unit_test(a_step_asks_for_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
