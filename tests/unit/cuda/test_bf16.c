/* Kernels on activations that are bf16: what they store is a float's, rounded once; sums are those of double. */
#include "proto/codec_half.h"
#include "tests/unit/cuda/lab.h"

static float float_of(bf16 x)
{
    return codec_bytes_to_float((uint32_t)x << 16);
}

static bf16 rounded(float x)
{
    return (bf16)codec_half_to_bf16(codec_bytes_of_float(x));
}

/* In [-1, 1). */
static bf16 *lab_bf16(struct lab *lab, size_t n)
{
    bf16 *x = lab_blank(lab, n * sizeof *x, 0);
    const float *from = lab_floats(lab, n, 0);

    for (size_t i = 0; i < n; i++)
        x[i] = rounded(from[i]);
    return x;
}

static bf16 *lab_bf16_blank(struct lab *lab, size_t n)
{
    return lab_blank(lab, n * sizeof(bf16), 0);
}

/* The last sum is of fp32, and rounded: twice where it lies between two. */
static void near(const bf16 *got, const double *want, const double *magnitude, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)float_of(got[i]) - want[i]);

        if (!(off <= 0x1.01p-8 * fabs(want[i]) + 1e-5 * magnitude[i] + 1e-30))
            fail_msg("[%zu] of %zu is %.9g, want %.9g", i, n, (double)float_of(got[i]),
                     want[i]);
    }
}

static void same(const bf16 *got, const bf16 *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("[%zu] of %zu is %04x, want %04x", i, n, got[i], want[i]);
}

/* ---- interactions */

struct job {
    struct bags b;
    struct interact it;
    const bf16 *rows, *own, *dr; /* own: what stands in T, the bags' places NaN */
    bf16 *t, *r, *dt, *dfirst;   /* dfirst: NULL without a direct part */
    struct bf16_mask mask;
    size_t n_t, n_r;
};

static cudaError_t run_both(void *arg)
{
    struct job *j = arg;
    cudaError_t error;

    memcpy(j->t, j->own, j->n_t * sizeof *j->t);
    error = kernels_bf16_interact_forward(NULL, &j->b, j->rows, &j->it, j->t, j->r);
    return error
               ? error
               : kernels_bf16_interact_backward(NULL, &j->b, j->rows, &j->it, j->t, j->dr,
                                                j->dt, j->dfirst ? &j->mask : NULL, j->dfirst);
}

/* T as it would be with all bags summed. */
static float *whole_t(struct lab *lab, const struct job *j)
{
    const uint32_t dim = j->it.dim, n_own = j->it.n_vectors - j->b.n_fields;
    float *t = lab_blank(lab, j->n_t * sizeof *t, 0);

    for (size_t i = 0; i < j->n_t; i++) {
        const size_t s = i / dim / j->it.n_vectors, v = i / dim % j->it.n_vectors;
        const uint32_t *span = j->b.starts + s * j->b.n_fields + v - n_own;
        float sum = 0;

        t[i] = float_of(j->own[i]);
        if (v < n_own)
            continue;
        for (uint32_t k = span[0]; k < span[1]; k++)
            sum += float_of(j->rows[(size_t)j->b.row_of[k] * dim + i % dim]);
        t[i] = float_of(rounded(sum));
    }
    return t;
}

/* dr's numbers as floats. */
static const float *slopes_of(struct lab *lab, const struct job *j, size_t s)
{
    float *slopes = lab_blank(lab, j->it.ldr * sizeof *slopes, 0);

    for (uint32_t i = 0; i < j->it.ldr; i++)
        slopes[i] = float_of(j->dr[s * j->it.ldr + i]);
    return slopes;
}

static void check(struct lab *lab, const struct job *j)
{
    const struct interact *it = &j->it;
    const size_t ld = (size_t)it->n_vectors * it->dim;
    const float *t = whole_t(lab, j);

    for (size_t s = 0; s < it->n; s++) {
        const struct lab_sums r = lab_sums(lab, it->ldr), dt = lab_sums(lab, ld);
        const bf16 *y = j->mask.y + s * j->mask.ldy;
        const float *slopes = slopes_of(lab, j, s);

        lab_interact(it, t + s * ld, slopes, r, 0, dt, 0);
        for (uint32_t d = 0; d < it->direct; d++)
            lab_add(dt, d, (double)slopes[d], 1);
        near(j->r + s * it->ldr, r.at, r.magnitude, it->ldr); /* zeros behind it */
        near(j->dt + s * ld + it->direct, dt.at + it->direct, dt.magnitude + it->direct,
             ld - it->direct);
        if (!j->dfirst)
            continue;
        for (uint32_t d = 0; d < it->dim; d++)
            dt.at[d] = float_of(y[d]) > 0 ? dt.at[d] * (double)j->mask.scale : 0;
        near(j->dfirst + s * it->dim, dt.at, dt.magnitude, it->dim);
        for (uint32_t d = 0; d < it->dim; d++)
            assert_int_equal(j->dt[s * ld + d], 0xffff); /* as it was */
    }
}

static void run(struct lab *lab, uint32_t dim, uint32_t n_vectors, uint32_t n_own, bool self)
{
    const uint32_t n = 1 + lab_below(lab, 3), n_fields = n_vectors - n_own, n_rows = 9;
    const uint32_t width =
        n_own * dim + (self ? n_vectors * (n_vectors + 1) : n_vectors * (n_vectors - 1)) / 2;
    const struct lab_bags bags = lab_bags(lab, n * n_fields, n_rows, 20);
    struct job j = { .b = { n, n_fields, dim, n_rows, bags.starts, bags.row_of, NULL },
                     .it = { n, n_vectors, dim, n_own * dim, self, (width + 7) / 8 * 8 } };
    bf16 *own, *dr;

    j.n_t = (size_t)n * n_vectors * dim;
    j.n_r = (size_t)n * j.it.ldr;
    own = lab_bf16(lab, j.n_t);
    for (size_t i = 0; i < j.n_t; i++)
        if (i / dim % n_vectors >= n_own)
            own[i] = 0x7fc0;
    j.own = own;
    j.rows = lab_bf16(lab, (size_t)n_rows * dim);
    dr = lab_bf16(lab, j.n_r);
    for (size_t i = 0; i < j.n_r; i++)
        if (i % j.it.ldr >= width)
            dr[i] = 0;
    j.dr = dr;
    j.t = lab_bf16_blank(lab, j.n_t);
    j.r = lab_bf16_blank(lab, j.n_r);
    j.dt = lab_bf16_blank(lab, j.n_t);
    j.dfirst = n_own ? lab_bf16_blank(lab, (size_t)n * dim) : NULL;
    j.mask = (struct bf16_mask){ lab_bf16(lab, (size_t)n * dim), dim, 1.25f };
    lab_each_order(lab, run_both, &j,
                   (struct lab_out[]){ { j.r, j.n_r * sizeof(bf16), NULL },
                                       { j.dt, j.n_t * sizeof(bf16), NULL },
                                       { j.dfirst, (size_t)n * dim * sizeof(bf16), NULL },
                                       { 0 } });
    check(lab, &j);
    lab_sweep(lab);
}

static void interactions_are_those_of_double_rounded(void **state)
{
    static const uint32_t dims[] = { 16, 32, 64, 128 };
    static const uint32_t vectors[] = { 1, 2, 9, 16, 17, 27, 32 };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (size_t k = 0; k < COUNT_OF(vectors); k++)
            run(lab, dims[i], vectors[k], vectors[k] > 1 && lab_below(lab, 3),
                lab_below(lab, 2) == 0);
}

/* ---- copies, and what follows a product */

static void copies_are_rounded_once_with_zeros_behind_rows(void **state)
{
    static const uint32_t widths[] = { 13, 8, 479, 16, 1 };
    struct lab *lab = *state;
    struct bf16_copy copies[COUNT_OF(widths)];

    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        const uint32_t n = i == 3 ? 1 : 1 + lab_below(lab, 40), ld = (widths[i] + 7) / 8 * 8;

        copies[i] = (struct bf16_copy){ lab_floats(lab, (size_t)n * (widths[i] + i), i),
                                        lab_bf16_blank(lab, (size_t)n * ld),
                                        n,
                                        widths[i],
                                        widths[i] + (uint32_t)i,
                                        ld };
    }
    lab_ran(kernels_bf16_round(NULL, copies, COUNT_OF(copies)));
    for (size_t i = 0; i < COUNT_OF(widths); i++)
        for (size_t k = 0; k < (size_t)copies[i].n * copies[i].ldy; k++) {
            const size_t s = k / copies[i].ldy, o = k % copies[i].ldy;

            assert_int_equal(copies[i].y[k],
                             o < widths[i] ? rounded(copies[i].x[s * copies[i].ldx + o]) : 0);
        }
    lab_sweep(lab);
}

static void rows_are_rounded_as_far_as_there_are_some(void **state)
{
    enum { DIM = 16, ROWS = 20, MAX = 40 };
    struct lab *lab = *state;
    uint32_t *counts = lab_blank(lab, 2 * sizeof *counts, 0);
    const struct bag_transpose transpose = { .n_rows_max = MAX, .counts = counts };
    const float *rows = lab_floats(lab, MAX * DIM, 0);
    bf16 *to = lab_bf16_blank(lab, MAX * DIM);

    counts[0] = ROWS;
    lab_ran(kernels_bf16_round_rows(NULL, DIM, &transpose, rows, to));
    for (size_t i = 0; i < MAX * DIM; i++)
        assert_int_equal(to[i], i < ROWS * DIM ? rounded(rows[i]) : 0xffff);
    lab_sweep(lab);
}

static void a_bias_and_a_relu_are_added_in_fp32(void **state)
{
    enum { N = 9, WIDTH = 24, LD = 40 };
    struct lab *lab = *state;
    bf16 *y = lab_bf16(lab, N * LD), *before = lab_bf16_blank(lab, N * LD),
         *want = lab_bf16_blank(lab, N * LD), *b = lab_bf16(lab, WIDTH);

    y[3 * LD + 5] = 0x7fc0;
    memcpy(before, y, N * LD * sizeof *y);
    for (int act = DEVICE_LINEAR; act <= DEVICE_RELU; act++) {
        memcpy(y, before, N * LD * sizeof *y);
        lab_ran(kernels_bf16_bias(NULL, N, WIDTH, b, (enum device_act)act, y, LD));
        for (size_t i = 0; i < N * LD; i++) {
            const float sum = float_of(before[i]) + float_of(b[i % LD % WIDTH]);

            want[i] = act == DEVICE_RELU && sum < 0 ? 0 : rounded(sum);
            if (i % LD >= WIDTH)
                want[i] = before[i];
        }
        assert_true(isnan(float_of(y[3 * LD + 5])));
        want[3 * LD + 5] = y[3 * LD + 5];
        same(y, want, N * LD);
    }
    lab_sweep(lab);
}

static void what_is_dropped_is_what_fp32_drops(void **state)
{
    enum { N = 9, WIDTH = 24 };
    struct lab *lab = *state;
    uint64_t *key = lab_blank(lab, sizeof *key, 0);
    const struct dropout d = { N, WIDTH, 0.3f, 1 / 0.7f, key };
    bf16 *y = lab_bf16(lab, N * WIDTH), *want = lab_bf16_blank(lab, N * WIDTH);
    float *as_floats = lab_floats(lab, N * WIDTH, 0);

    *key = 4711;
    for (size_t i = 0; i < N * WIDTH; i++)
        as_floats[i] = float_of(y[i]);
    lab_ran(kernels_dropout(NULL, &d, as_floats));
    lab_ran(kernels_bf16_dropout(NULL, &d, y));
    for (size_t i = 0; i < N * WIDTH; i++)
        want[i] = rounded(as_floats[i]);
    same(y, want, N * WIDTH);
    lab_sweep(lab);
}

/* ---- sums over samples */

struct sums_job {
    uint32_t n, width;
    const bf16 *before;
    bf16 *d;
    float *sums, *plain;
    struct bf16_mask mask;
    void *scratch;
};

static cudaError_t run_sums(void *arg)
{
    const struct sums_job *j = arg;
    cudaError_t error;

    memcpy(j->d, j->before, (size_t)j->n * j->width * sizeof *j->d);
    error = kernels_bf16_bias_grad(NULL, j->n, j->width, j->d, j->plain, j->scratch);
    return error ? error
                 : kernels_bf16_mask_sums(NULL, j->n, j->width, &j->mask, j->d, j->sums,
                                          j->scratch);
}

static void check_sums(const struct sums_job *j)
{
    for (uint32_t o = 0; o < j->width; o++) {
        double plain = 0, left = 0;

        for (size_t s = 0; s < j->n; s++) {
            const float d = float_of(j->before[s * j->width + o]);
            const float through =
                float_of(j->mask.y[s * j->mask.ldy + o]) > 0 ? d * j->mask.scale : 0;

            assert_int_equal(j->d[s * j->width + o], rounded(through));
            plain += (double)d;
            left += (double)through;
        }
        assert_true(fabs(plain - (double)j->plain[o]) <= 1e-6 * j->n + 1e-6);
        assert_true(fabs(left - (double)j->sums[o]) <= 1e-6 * j->n + 1e-6);
    }
}

static void masks_and_sums_are_those_of_double(void **state)
{
    static const uint32_t sizes[][2] = { { 1, 8 },    { 63, 24 },  { 64, 256 },
                                         { 65, 264 }, { 300, 40 }, { 2100, 16 } };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i][0], width = sizes[i][1];
        struct sums_job j = { .n = n, .width = width };

        j.before = lab_bf16(lab, (size_t)n * width);
        j.d = lab_bf16_blank(lab, (size_t)n * width);
        j.sums = lab_blank(lab, width * sizeof(float), 0);
        j.plain = lab_blank(lab, width * sizeof(float), 0);
        j.mask = (struct bf16_mask){ lab_bf16(lab, (size_t)n * (width + 8)), width + 8, 1.25f };
        j.scratch = lab_blank(lab, kernels_sums_bytes(n, width), 0);
        lab_each_order(lab, run_sums, &j,
                       (struct lab_out[]){ { j.sums, width * sizeof(float), NULL },
                                           { j.plain, width * sizeof(float), NULL },
                                           { 0 } });
        check_sums(&j);
        lab_sweep(lab);
    }
}

struct logit_job {
    struct bf16_logit l;
    const float *dz;
    float scale, *z, *dw, *db, *sums;
    bf16 *dx;
    void *scratch;
};

static cudaError_t run_logit(void *arg)
{
    const struct logit_job *j = arg;
    const cudaError_t error = kernels_bf16_logit_forward(NULL, &j->l, j->z);

    return error ? error
                 : kernels_bf16_logit_backward(NULL, &j->l, j->dz, j->dx, j->scale, j->dw,
                                               j->db, j->sums, j->scratch);
}

static void check_logit(const struct logit_job *j)
{
    const size_t in = j->l.in, n = j->l.n;
    double db = 0;

    for (size_t s = 0; s < n; s++) {
        double z = (double)j->l.b[0];

        for (size_t i = 0; i < in; i++)
            z += (double)float_of(j->l.x[s * in + i]) * (double)j->l.w[i];
        assert_true(fabs(z - (double)j->z[s]) <= 1e-5 * (double)in);
        db += (double)j->dz[s];
    }
    assert_true(fabs(db - (double)*j->db) <= 1e-6 * (double)n + 1e-6);
    for (size_t i = 0; i < in; i++) {
        double dw = 0, sum = 0;

        for (size_t s = 0; s < n; s++) {
            const float x = float_of(j->l.x[s * in + i]),
                        dx = x > 0 ? j->l.w[i] * j->dz[s] * j->scale : 0;

            assert_int_equal(j->dx[s * in + i], rounded(dx));
            dw += (double)x * (double)j->dz[s];
            sum += (double)dx;
        }
        assert_true(fabs(dw - (double)j->dw[i]) <= 1e-6 * (double)n + 1e-6);
        assert_true(fabs(sum - (double)j->sums[i]) <= 1e-6 * (double)n + 1e-6);
    }
}

static void logits_are_those_of_double(void **state)
{
    static const uint32_t sizes[][2] = {
        { 1, 8 }, { 65, 24 }, { 64, 256 }, { 130, 264 }, { 600, 16 }
    };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint32_t n = sizes[i][0], in = sizes[i][1];
        struct logit_job j = { .l = { n, in, lab_bf16(lab, (size_t)n * in),
                                      lab_floats(lab, in, 0), lab_floats(lab, 1, 0) },
                               .dz = lab_floats(lab, n, 0),
                               .scale = 1.25f };

        j.z = lab_blank(lab, n * sizeof(float), 0);
        j.dw = lab_blank(lab, in * sizeof(float), 0);
        j.db = lab_blank(lab, sizeof(float), 0);
        j.sums = lab_blank(lab, in * sizeof(float), 0);
        j.dx = lab_bf16_blank(lab, (size_t)n * in);
        j.scratch = lab_blank(lab, kernels_bf16_logit_bytes(&j.l), 0);
        lab_each_order(lab, run_logit, &j,
                       (struct lab_out[]){ { j.z, n * sizeof(float), NULL },
                                           { j.dw, in * sizeof(float), NULL },
                                           { j.db, sizeof(float), NULL },
                                           { j.sums, in * sizeof(float), NULL },
                                           { j.dx, (size_t)n * in * sizeof(bf16), NULL },
                                           { 0 } });
        check_logit(&j);
        lab_sweep(lab);
    }
}

/* ---- rows' gradients: of the same numbers as floats, bit for bit */

static void row_gradients_are_fp32s_bit_for_bit(void **state)
{
    enum { N = 40, FIELDS = 3, DIM = 16, ROWS = 7, BAGS = N * FIELDS, LD = (FIELDS + 1) * DIM };
    struct lab *lab = *state;
    uint32_t *of = lab_blank(lab, 3 * BAGS * sizeof *of, 0), n_keys = 0, n_spans = 0,
             *spans = lab_blank(lab, (ROWS + 3 * BAGS) * sizeof *spans, 0),
             *first = lab_blank(lab, (ROWS + 1) * sizeof *first, 0),
             *counts = lab_blank(lab, 2 * sizeof *counts, 0);
    const struct bag_transpose transpose = { ROWS, ROWS + 5, counts, of, spans, first };
    const struct bags b = { N, FIELDS, DIM, ROWS, NULL, NULL, &transpose };
    bf16 *sums = lab_bf16(lab, N * LD);
    float *as_floats = lab_floats(lab, N * LD, 0), *got = lab_blank(lab, ROWS * DIM * 4, 0),
          *want = lab_blank(lab, ROWS * DIM * 4, 0);
    void *scratch = lab_blank(lab, kernels_bag_grad_bytes(ROWS + 5, DIM), 0);

    for (size_t i = 0; i < N * LD; i++)
        as_floats[i] = float_of(sums[i]);
    for (uint32_t r = 0; r < ROWS; r++) {
        first[r] = n_spans;
        for (uint32_t k = 0, n = r == 2 ? 150 : lab_below(lab, 20); k < n; k++) {
            if (k % BAG_TRANSPOSE_SPAN == 0)
                spans[n_spans++] = n_keys;
            of[n_keys++] = lab_below(lab, BAGS);
        }
    }
    first[ROWS] = n_spans;
    spans[n_spans] = n_keys;
    counts[0] = ROWS;
    counts[1] = n_spans;
    lab_ran(kernels_bag_grad(NULL, &b, as_floats + DIM, LD, want, scratch));
    lab_ran(kernels_bf16_bag_grad(NULL, &b, sums + DIM, LD, got, scratch));
    lab_same(got, want, ROWS * DIM);
    lab_sweep(lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interactions_are_those_of_double_rounded),
        cmocka_unit_test(copies_are_rounded_once_with_zeros_behind_rows),
        cmocka_unit_test(rows_are_rounded_as_far_as_there_are_some),
        cmocka_unit_test(a_bias_and_a_relu_are_added_in_fp32),
        cmocka_unit_test(what_is_dropped_is_what_fp32_drops),
        cmocka_unit_test(masks_and_sums_are_those_of_double),
        cmocka_unit_test(logits_are_those_of_double),
        cmocka_unit_test(row_gradients_are_fp32s_bit_for_bit),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
