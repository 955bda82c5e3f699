/* The CPU's ops: order of sums, shapes that are no multiple of anything, empty inputs, NaN. */
#include <math.h>

#include "tests/unit/model/fixture.h"
#include "worker/compute/device.h"

static const struct device_ops *const ops = &device_cpu;

static float *floats(struct fixture_rng *rng, size_t n)
{
    float *x = memory_alloc(n * sizeof *x + 1);

    fixture_fill(rng, x, n, 1);
    return x;
}

static void assert_near(float got, double want, double scale)
{
    if (!(fabs((double)got - want) <= 2e-6 * (scale + fabs(want))))
        fail_msg("got %.9g, want %.9g", (double)got, want);
}

static void check_linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                                 uint32_t ldy, float *y)
{
    ops->linear_forward(c, l, act, y, ldy);
    for (size_t s = 0; s < l->n; s++)
        for (size_t o = 0; o < l->out; o++) {
            double want = (double)l->b[o];

            for (size_t i = 0; i < l->in; i++)
                want += (double)l->x[s * l->in + i] * (double)l->w[o * l->in + i];
            assert_near(y[s * ldy + o], act == DEVICE_RELU ? fmax(want, 0) : want,
                        sqrt((double)l->in));
        }
}

/* db is a sum of blocks, bit for bit. */
static float block_sum(const float *dy, size_t n, size_t out, size_t o)
{
    const size_t block = device_block((uint32_t)n);
    float sum = 0;

    for (size_t first = 0; first < n; first += block) {
        float part = 0;

        for (size_t s = first; s < n && s < first + block; s++)
            part += dy[s * out + o];
        sum += part;
    }
    return sum;
}

/* mask: of dx, n x in. */
static void check_linear_backward(struct compute *c, const struct linear *l,
                                  const struct relu_mask *mask, struct fixture_rng *rng)
{
    const size_t n = l->n, in = l->in, out = l->out;
    float *dy = floats(rng, n * out), *dx = floats(rng, n * in);
    float *dw = floats(rng, out * in), *db = floats(rng, out);

    ops->linear_backward(c, l, dy, dx, mask, dw, db, NULL);
    for (size_t k = 0; k < out * in; k++) {
        double want = 0;

        for (size_t s = 0; s < n; s++)
            want += (double)dy[s * out + k / in] * (double)l->x[s * in + k % in];
        assert_near(dw[k], want, sqrt((double)n + 1));
    }
    for (size_t k = 0; k < n * in; k++) {
        const bool kept = !mask || mask->y[(k / in) * mask->ldy + k % in] > 0;
        double want = 0;

        for (size_t o = 0; o < out; o++)
            want += (double)dy[(k / in) * out + o] * (double)l->w[o * in + k % in];
        if (kept)
            assert_near(dx[k], want * (mask ? (double)mask->scale : 1), sqrt((double)out));
        else
            assert_true(dx[k] == 0);
    }
    for (size_t o = 0; o < out; o++)
        assert_true(db[o] == block_sum(dy, n, out, o));
    free(dy), free(dx), free(dw), free(db);
}

static void a_linear_layer_is_its_formula_forward_and_backward(void **state)
{
    struct fixture_rng rng = { seed_of_run(4711), 0 };
    struct compute *c = *state;

    for (uint32_t i = 0; i < 60; i++) {
        const uint32_t n = fixture_below(&rng, i % 10 ? 40 : 300),
                       in = i < 40 ? i + 1 : 1 + fixture_below(&rng, 70),
                       out = 1 + fixture_below(&rng, 70), ldy = out + fixture_below(&rng, 3),
                       ldm = in + fixture_below(&rng, 3);
        float *x = floats(&rng, (size_t)n * in), *w = floats(&rng, (size_t)out * in),
              *b = floats(&rng, out);
        float *y = floats(&rng, (size_t)n * ldy), *below = floats(&rng, (size_t)n * ldm);
        const struct linear l = { n, in, out, x, w, b, 0 };
        const struct relu_mask mask = { below, ldm, 1.25f };

        assert_int_equal(ops->reserve(c, n, in, out), 0);
        check_linear_forward(c, &l, DEVICE_LINEAR, ldy, y);
        check_linear_forward(c, &l, DEVICE_RELU, ldy, y);
        check_linear_backward(c, &l, &mask, &rng);
        check_linear_backward(c, &l, NULL, &rng);
        free(x), free(w), free(b), free(y), free(below);
    }
}

static void a_product_gives_the_same_bits_again(void **state)
{
    struct compute *c = *state;
    struct fixture_rng rng = { 5, 0 };
    const uint32_t n = 129, in = 367, out = 255;
    float *x = floats(&rng, n * in), *w = floats(&rng, out * in), *b = floats(&rng, out);
    float *first = floats(&rng, n * out), *again = floats(&rng, n * out + 1);
    const struct linear l = { n, in, out, x, w, b, 0 };

    assert_int_equal(ops->reserve(c, n, in, out), 0);
    ops->linear_forward(c, &l, DEVICE_RELU, first, out);
    for (int i = 0; i < 3; i++) {
        ops->linear_forward(c, &l, DEVICE_RELU, again + i % 2, out);
        assert_memory_equal(first, again + i % 2, n * out * sizeof *first);
    }
    free(x), free(w), free(b), free(first), free(again);
}

static void a_nan_passes_through_relu(void **state)
{
    struct compute *c = *state;
    const float x[2] = { 1, NAN }, w[1] = { 1 }, b[1] = { 0 };
    const struct linear l = { 2, 1, 1, x, w, b, 0 };
    float y[2] = { 0 };

    assert_int_equal(ops->reserve(c, 2, 1, 1), 0);
    ops->linear_forward(c, &l, DEVICE_RELU, y, 1);
    assert_true(y[0] == 1 && isnan(y[1]));
}

static void relu_has_no_slope_at_zero(void **state)
{
    const float w[1] = { 1 }, b[1] = { 0 }, dy[3] = { 3, 3, 3 };
    const float below[3] = { 0, -0.0f, 1e-30f };
    const struct linear l = { 3, 1, 1, below, w, b, 0 };
    const struct relu_mask mask = { below, 1, 2 };
    float dx[3] = { 9, 9, 9 }, dw[1], db[1], sum[3] = { 9, 9, 9 };
    struct compute *c = *state;

    assert_int_equal(ops->reserve(c, 3, 1, 1), 0);
    ops->linear_backward(c, &l, dy, dx, &mask, dw, db, NULL);
    assert_true(dx[0] == 0 && dx[1] == 0 && dx[2] == 6);
    ops->add_rows(c, 3, 1, dy, 1, dy, 1, &mask, sum);
    assert_true(sum[0] == 0 && sum[1] == 0 && sum[2] == 12);
}

/* Of all fields but the first and the last, if there are so many: all else stays. */
static void check_means(struct compute *c, const struct bags *b, const float *sums, uint32_t ld)
{
    const uint32_t first = b->n_fields > 2, end = b->n_fields - first;
    float *means = memory_alloc((size_t)b->n * ld * sizeof *means + 1);

    memcpy(means, sums, (size_t)b->n * ld * sizeof *means);
    ops->bag_mean(c, b, first, end, means, ld);
    for (size_t s = 0; s < b->n; s++)
        for (size_t i = 0; i < ld; i++) {
            const size_t f = i / b->dim, bag = s * b->n_fields + f;
            float want = sums[s * ld + i];

            if (f >= first && f < end && b->starts[bag + 1] - b->starts[bag] > 1)
                want /= (float)(b->starts[bag + 1] - b->starts[bag]);
            assert_true(means[s * ld + i] == want);
        }
    free(means);
}

/* Bit for bit: the order of sums is part of the contract. */
static void check_bags(struct compute *c, const struct batch *b, uint32_t dim,
                       struct fixture_rng *rng)
{
    const uint32_t pad = fixture_below(rng, 5), ld = b->n_fields * dim + pad;
    const struct bags bags = {
        b->n, b->n_fields, dim, b->n_unique, b->starts, b->row_of, NULL
    };
    const size_t n_rows = b->n_unique;
    float *rows = floats(rng, n_rows * dim), *sums = floats(rng, (size_t)b->n * ld);
    float *drows = floats(rng, n_rows * dim),
          *want = memory_alloc(n_rows * dim * sizeof *want + 1);

    ops->bag_sum(c, &bags, rows, sums, ld);
    for (size_t bag = 0; bag < (size_t)b->n * b->n_fields; bag++)
        for (size_t d = 0; d < dim; d++) {
            float sum = 0;

            for (uint32_t j = b->starts[bag]; j < b->starts[bag + 1]; j++)
                sum += rows[b->row_of[j] * dim + d];
            assert_true(sums[bag / b->n_fields * ld + bag % b->n_fields * dim + d] == sum);
        }
    check_means(c, &bags, sums, ld);
    ops->bag_grad(c, &bags, sums, ld, drows);
    for (size_t bag = 0; bag < (size_t)b->n * b->n_fields; bag++)
        for (uint32_t j = b->starts[bag]; j < b->starts[bag + 1]; j++)
            for (size_t d = 0; d < dim; d++)
                want[b->row_of[j] * dim + d] +=
                    sums[bag / b->n_fields * ld + bag % b->n_fields * dim + d];
    assert_memory_equal(drows, want, n_rows * dim * sizeof *want);
    free(rows), free(sums), free(drows), free(want);
}

static void bags_sum_their_rows_and_rows_their_bags_in_ascending_order(void **state)
{
    struct compute *c = *state;
    struct fixture_rng rng = { seed_of_run(4711), 0 };

    for (uint32_t dim = 1; dim <= 40; dim++) {
        const uint32_t n = fixture_below(&rng, 12), n_fields = 1 + fixture_below(&rng, 5);
        struct batch b;

        fixture_batch_init(&b, 12, 0, n_fields, 3 * 12 * n_fields);
        fixture_batch_fill(&b, n, &rng);
        check_bags(c, &b, dim, &rng);
        fixture_batch_deinit(&b);
    }
}

static float pair_dot(const float *a, const float *b, uint32_t dim)
{
    float sum = 0;

    for (uint32_t d = 0; d < dim; d++)
        sum += a[d] * b[d];
    return sum;
}

/* Bit for bit too. */
static void check_interact(struct compute *c, const struct interact *it,
                           struct fixture_rng *rng)
{
    const uint32_t V = it->n_vectors, dim = it->dim, self = it->self ? 1 : 0;
    const size_t pairs = self ? V * (V + 1) / 2 : V * (V - 1) / 2, ld = it->direct + pairs,
                 n_t = (size_t)V * dim;
    float *t = floats(rng, it->n * n_t), *r = floats(rng, it->n * ld),
          *dt = floats(rng, it->n * n_t);
    float *g = memory_alloc((size_t)V * V * sizeof *g);

    ops->interact_forward(c, it, t, r);
    for (size_t s = 0; s < it->n; s++) {
        const float *v = t + s * n_t, *at = r + s * ld;

        for (uint32_t d = 0; d < it->direct; d++)
            assert_true(*at++ == v[d]);
        for (uint32_t i = 0; i < V; i++)
            for (uint32_t j = 0; j < i + self; j++)
                assert_true(*at++ == pair_dot(v + i * dim, v + j * dim, dim));
    }
    ops->interact_backward(c, it, t, r, dt);
    for (size_t s = 0; s < it->n; s++) {
        const float *at = r + s * ld + it->direct;

        for (uint32_t i = 0; i < V; i++)
            for (uint32_t j = 0; j < i + self; j++, at++)
                g[i * V + j] = g[j * V + i] = i == j ? 2 * *at : *at;
        for (uint32_t k = 0; k < n_t; k++) {
            float want = 0;

            for (uint32_t j = 0; j < V; j++)
                if (j != k / dim || self)
                    want += g[k / dim * V + j] * t[s * n_t + j * dim + k % dim];
            assert_true(dt[s * n_t + k] == want);
        }
    }
    free(t), free(r), free(dt), free(g);
}

static void interaction_takes_pairs_row_by_row_below_the_diagonal(void **state)
{
    struct compute *c = *state;
    struct fixture_rng rng = { seed_of_run(4711), 0 };

    for (int i = 0; i < 80; i++) {
        const uint32_t dim = 1 + fixture_below(&rng, i % 8 ? 40 : 200);

        check_interact(c,
                       &(struct interact){ fixture_below(&rng, 3), 1 + fixture_below(&rng, 40),
                                           dim, fixture_below(&rng, 2) ? dim : 0,
                                           fixture_below(&rng, 2) == 0, 0 },
                       &rng);
    }
}

/* Of n floats as far as element `d` has it: those of the vectors, then of their squares, ascending. */
static float pairs_of_element(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t d)
{
    float sum = 0, squares = 0;

    for (uint32_t i = 0; i < n_vectors; i++) {
        sum += t[i * dim + d];
        squares += t[i * dim + d] * t[i * dim + d];
    }
    return sum * sum - squares;
}

/* The sum that device.h defines, and, to within roundings, the sum over pairs one by one. */
static void check_pair_sum(struct compute *c, const struct pair_sum *p, struct fixture_rng *rng)
{
    const size_t n_t = (size_t)p->n * p->ld;
    float *t = floats(rng, n_t), *z = floats(rng, p->n),
          *before = memory_alloc(p->n * sizeof *z);

    memcpy(before, z, p->n * sizeof *z);
    ops->pair_sum_forward(c, p, t, z);
    for (size_t s = 0; s < p->n; s++) {
        const float *v = t + s * p->ld;
        float lanes[16] = { 0 }, sum = 0;
        double pairs = 0;

        for (uint32_t d = 0; d < p->dim; d++)
            lanes[d % 16] += pairs_of_element(v, p->n_vectors, p->dim, d);
        for (uint32_t k = 0; k < 16; k++)
            sum += lanes[k];
        assert_true(z[s] == before[s] + 0.5f * sum);
        for (uint32_t i = 0; i < p->n_vectors; i++)
            for (uint32_t j = 0; j < i; j++)
                pairs += (double)pair_dot(v + i * p->dim, v + j * p->dim, p->dim);
        assert_near(z[s] - before[s], pairs, (double)p->n_vectors * p->n_vectors * p->dim);
    }
    free(t), free(z), free(before);
}

/* On its own, on top of another gradient, and in place. */
static void check_pair_sum_backward(struct compute *c, const struct pair_sum *p,
                                    struct fixture_rng *rng)
{
    const size_t n_t = (size_t)p->n * p->ld;
    float *t = floats(rng, n_t), *dz = floats(rng, p->n), *dx = floats(rng, n_t);
    float *dt = floats(rng, n_t), *with = floats(rng, n_t),
          *gaps = memory_alloc(n_t * sizeof *t);

    memcpy(gaps, with, n_t * sizeof *t);
    ops->pair_sum_backward(c, p, t, dz, NULL, dt);
    ops->pair_sum_backward(c, p, t, dz, dx, with);
    ops->pair_sum_backward(c, p, t, dz, dx, dx);
    for (size_t s = 0; s < p->n; s++)
        for (uint32_t k = 0; k < p->ld; k++) {
            const size_t at = s * p->ld + k;
            float sum = 0;

            if (k >= p->n_vectors * p->dim) {
                assert_true(with[at] == gaps[at]);
                continue;
            }
            for (uint32_t i = 0; i < p->n_vectors; i++)
                sum += t[s * p->ld + i * p->dim + k % p->dim];
            assert_true(dt[at] == dz[s] * (sum - t[at]));
            assert_true(with[at] == dx[at]);
        }
    free(t), free(dz), free(dx), free(dt), free(with), free(gaps);
}

static void the_sum_of_pairs_is_half_of_square_less_squares(void **state)
{
    struct compute *c = *state;
    struct fixture_rng rng = { seed_of_run(4711), 0 };

    for (int i = 0; i < 80; i++) {
        struct pair_sum p = { fixture_below(&rng, 3), fixture_below(&rng, 30),
                              1 + fixture_below(&rng, 40), 0 };

        p.n = i % 8 ? p.n : 200;
        p.ld = p.n_vectors * p.dim + fixture_below(&rng, 4);
        check_pair_sum(c, &p, &rng);
        check_pair_sum_backward(c, &p, &rng);
    }
}

/* Gaps stay. The gradient on its own, on top of another one, and in place. */
static void check_cross(struct compute *c, const struct cross_shape *s, struct fixture_rng *rng)
{
    const size_t n = (size_t)s->n * s->ld, n_u = (size_t)s->n * s->width;
    float *x0 = floats(rng, n), *x = floats(rng, n), *u = floats(rng, n_u), *y = floats(rng, n);
    float *dx0 = floats(rng, n), *du = floats(rng, n_u), *with = floats(rng, n);
    float *more = floats(rng, n), *before = memory_alloc(4 * n * sizeof *before + 1);

    memcpy(before, y, n * sizeof *y), memcpy(before + n, dx0, n * sizeof *y);
    memcpy(before + 2 * n, with, n * sizeof *y), memcpy(before + 3 * n, more, n * sizeof *y);
    ops->cross_forward(c, s, x0, u, x, y);
    ops->cross_backward(c, s, x0, u, x, NULL, du, dx0);
    ops->cross_backward(c, s, x0, u, x, more, du, with);
    ops->cross_backward(c, s, x0, u, x, more, du, more);
    for (size_t i = 0; i < n; i++) {
        const size_t at = i / s->ld * s->width + i % s->ld;
        const bool is_gap = i % s->ld >= s->width;
        const float product = is_gap ? 0 : x[i] * u[at];

        assert_true(y[i] == (is_gap ? before[i] : x0[i] * u[at] + x[i]));
        assert_true(dx0[i] == (is_gap ? before[n + i] : product));
        assert_true(with[i] == (is_gap ? before[2 * n + i] : product + before[3 * n + i]));
        assert_true(more[i] == (is_gap ? before[3 * n + i] : with[i]));
        assert_true(is_gap || du[at] == x[i] * x0[i]);
    }
    free(x0), free(x), free(u), free(y), free(dx0), free(du), free(with), free(more);
    free(before);
}

static void a_cross_layer_multiplies_by_its_input_and_adds_it(void **state)
{
    struct compute *c = *state;
    struct fixture_rng rng = { seed_of_run(4711), 0 };

    for (int i = 0; i < 60; i++) {
        struct cross_shape s = { i % 8 ? fixture_below(&rng, 5) : 200,
                                 1 + fixture_below(&rng, 40), 0 };

        s.ld = s.width + fixture_below(&rng, 4);
        check_cross(c, &s, &rng);
    }
}

static void rows_are_copied_between_strides(void **state)
{
    struct compute *c = *state;
    struct fixture_rng rng = { seed_of_run(4711), 0 };

    for (int i = 0; i < 40; i++) {
        const uint32_t n = fixture_below(&rng, 150), width = 1 + fixture_below(&rng, 20);
        const uint32_t ldx = width + fixture_below(&rng, 3),
                       ldy = width + fixture_below(&rng, 3);
        float *x = floats(&rng, (size_t)n * ldx), *y = floats(&rng, (size_t)n * ldy);
        float *before = memory_alloc((size_t)n * ldy * sizeof *y + 1);

        memcpy(before, y, (size_t)n * ldy * sizeof *y);
        ops->copy_rows(c, n, width, x, ldx, y, ldy);
        for (size_t k = 0; k < (size_t)n * ldy; k++)
            assert_true(y[k] == (k % ldy < width ? x[k / ldy * ldx + k % ldy] : before[k]));
        free(x), free(y), free(before);
    }
}

/* By hand: three hats from -1 to 1. */
static void numbers_become_hats(void **state)
{
    static const float x[] = { 0.25f, NAN, -7, 9, -1, 0.5f };
    static const float want[][5] = { { 0.25f, 0, 0, 0.75f, 0.25f },
                                     { 0, 1, 0, 0, 0 },
                                     { -7, 0, 1, 0, 0 },
                                     { 9, 0, 0, 0, 1 },
                                     { -1, 0, 1, 0, 0 },
                                     { 0.5f, 0, 0, 0.5f, 0.5f } };
    struct compute *c = *state;
    const struct number_hats h = { 3, 2, 3, -1, 12 };
    float y[3 * 12];

    for (size_t k = 0; k < COUNT_OF(y); k++)
        y[k] = 77;
    ops->number_hats(c, &h, x, y);
    for (uint32_t k = 0; k < COUNT_OF(y); k++)
        if (k % 12 < 10)
            assert_float_equal(y[k], want[k / 12 * 2 + k % 12 / 5][k % 12 % 5], 0);
        else
            assert_float_equal(y[k], 77, 0);
}

static void dropout_keeps_its_share_whatever_the_batch(void **state)
{
    struct compute *c = *state;
    const uint32_t n = 1000, width = 50;
    const uint64_t key = 99;
    float *y = memory_alloc(n * width * sizeof *y),
          *part = memory_alloc(n * width * sizeof *part);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n * width; i++)
        y[i] = part[i] = 1;
    ops->dropout(c, &(struct dropout){ n, width, 0.25f, 1 / 0.75f, &key }, y);
    ops->dropout(c, &(struct dropout){ n / 10, width, 0.25f, 1 / 0.75f, &key }, part);
    assert_memory_equal(y, part, n / 10 * width * sizeof *y);
    for (uint32_t i = 0; i < n * width; i++) {
        assert_true(y[i] == 0 || y[i] == 1 / 0.75f);
        kept += y[i] > 0;
    }
    /* 5 standard deviations. */
    assert_in_range(kept, n * width * 3 / 4 - 500, n * width * 3 / 4 + 500);
    free(y), free(part);
}

static void a_normalised_batch_has_mean_beta_and_variance_gamma_squared(void **state)
{
    struct compute *c = *state;
    enum { N = 300, WIDTH = 19 };
    struct fixture_rng rng = { 3, 0 };
    float gamma[WIDTH], beta[WIDTH], running_mean[WIDTH], running_var[WIDTH], mean[WIDTH],
        var[WIDTH], inv[WIDTH];
    float *x = floats(&rng, N * WIDTH), *y = floats(&rng, N * WIDTH);
    const struct norm nm = { N, WIDTH, gamma, beta, running_mean, running_var, mean, var, inv };

    fixture_fill(&rng, gamma, WIDTH, 0.5f);
    fixture_fill(&rng, beta, WIDTH, 1);
    for (size_t i = 0; i < N * WIDTH; i++)
        x[i] = 1000 + x[i] * 3; /* a large mean must not eat the variance */
    ops->norm_batch(c, &nm, x);
    ops->norm_apply(c, &nm, DEVICE_LINEAR, x, y, WIDTH);
    for (size_t o = 0; o < WIDTH; o++) {
        double sum = 0, squares = 0, scale = 1 + (double)gamma[o];

        for (size_t s = 0; s < N; s++)
            sum += (double)y[s * WIDTH + o] / N;
        for (size_t s = 0; s < N; s++)
            squares += ((double)y[s * WIDTH + o] - sum) * ((double)y[s * WIDTH + o] - sum) / N;
        assert_true(fabs(sum - (double)beta[o]) < 1e-3 && fabs(squares - scale * scale) < 1e-3);
    }
    free(x), free(y);
}

static void a_running_variance_below_zero_counts_as_zero(void **state)
{
    struct compute *c = *state;
    const float zero = 0, running_var = -1.001f, x = 1;
    float mean, var, inv, y = 0;
    const struct norm nm = { 1, 1, &zero, &zero, &zero, &running_var, &mean, &var, &inv };

    ops->norm_running(c, &nm);
    ops->norm_apply(c, &nm, DEVICE_RELU, &x, &y, 1);
    assert_true(isfinite(y));
}

static void the_log_learns_how_many_threads_compute(void **state)
{
    struct compute *c;

    (void)state;
    assert_int_equal(ops->open(&(struct device_options){ .n_threads = 1 }, &c, NULL), 0);
    assert_non_null(strstr(ops->describe(c), "1 thread"));
    assert_int_equal(ops->wait(c, 0), 0);
    ops->close(c);
    ops->close(NULL);
    assert_int_equal(ops->open(&(struct device_options){ .n_threads = 3 }, &c, NULL), 0);
    assert_non_null(strstr(ops->describe(c), "3 threads"));
    ops->close(c);
}

static void no_threads_or_too_many_are_refused(void **state)
{
    static const uint32_t n_threads[] = { 0, DEVICE_THREADS_MAX + 1, UINT32_MAX };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(n_threads); i++) {
        struct compute *c = NULL;
        struct err err = { 0 };

        assert_int_equal(
            ops->open(&(struct device_options){ .n_threads = n_threads[i] }, &c, &err),
            PS_ESETTING);
        assert_null(c);
        assert_non_null(strstr(err.text, "expected 1 to 64"));
    }
}

static int start(void **state)
{
    return ops->open(&(struct device_options){ .n_threads = 2 }, (struct compute **)state,
                     NULL);
}

static int start_blas(void **state)
{
    return ops->open(&(struct device_options){ .n_threads = 2, .products = DEVICE_BLAS },
                     (struct compute **)state, NULL);
}

static int stop(void **state)
{
    ops->close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_layer_is_its_formula_forward_and_backward),
        cmocka_unit_test(a_product_gives_the_same_bits_again),
        cmocka_unit_test(a_nan_passes_through_relu),
        cmocka_unit_test(relu_has_no_slope_at_zero),
        cmocka_unit_test(bags_sum_their_rows_and_rows_their_bags_in_ascending_order),
        cmocka_unit_test(interaction_takes_pairs_row_by_row_below_the_diagonal),
        cmocka_unit_test(the_sum_of_pairs_is_half_of_square_less_squares),
        cmocka_unit_test(a_cross_layer_multiplies_by_its_input_and_adds_it),
        cmocka_unit_test(rows_are_copied_between_strides),
        cmocka_unit_test(numbers_become_hats),
        cmocka_unit_test(dropout_keeps_its_share_whatever_the_batch),
        cmocka_unit_test(a_normalised_batch_has_mean_beta_and_variance_gamma_squared),
        cmocka_unit_test(a_running_variance_below_zero_counts_as_zero),
        cmocka_unit_test(the_log_learns_how_many_threads_compute),
        cmocka_unit_test(no_threads_or_too_many_are_refused),
    };

    const struct CMUnitTest products[] = {
        cmocka_unit_test(a_linear_layer_is_its_formula_forward_and_backward),
        cmocka_unit_test(a_product_gives_the_same_bits_again),
        cmocka_unit_test(a_nan_passes_through_relu),
        cmocka_unit_test(relu_has_no_slope_at_zero),
    };

    return cmocka_run_group_tests(tests, start, stop) +
           cmocka_run_group_tests_name("by OpenBLAS", products, start_blas, stop);
}
