/* Bags and their gradients by row: the CPU's bit for bit, but for rows of many uses, which are within rounding. */
#include "tests/unit/cuda/lab.h"

struct job {
    struct bags b;
    struct bag_transpose transpose;
    uint32_t ld;
    const float *rows, *dsums, *weights, *dz;
    float *sums, *means, *drows, *z, *dweights;
    void *scratch;
};

static cudaError_t run_all(void *arg)
{
    struct job *j = arg;
    cudaError_t error = kernels_bag_sum(NULL, &j->b, j->rows, j->sums, j->ld);

    if (!error)
        error =
            kernels_bag_mean(NULL, &j->b, j->b.n_fields / 2, j->b.n_fields, j->means, j->ld);
    if (!error)
        error = kernels_bag_grad(NULL, &j->b, j->dsums, j->ld, j->drows, j->scratch);
    if (!error)
        error = kernels_wide_sum(NULL, &j->b, j->weights, j->z);
    if (!error)
        error = kernels_wide_grad(NULL, &j->b, j->dz, j->dweights, j->scratch);
    return error;
}

/* The uses of each row, in spans, with room for some more. */
static void find_uses(struct lab *lab, struct job *j)
{
    const struct bags *b = &j->b;
    const uint32_t n_bags = b->n * b->n_fields, n_keys = b->starts[n_bags];
    uint32_t *bags = lab_blank(lab, n_keys * sizeof *bags, 0), n = 0, n_spans = 0,
             *spans = lab_blank(lab, (n_keys + 1) * sizeof *spans, 0),
             *first = lab_blank(lab, (b->n_rows + 1) * sizeof *first, 0),
             *counts = lab_blank(lab, 2 * sizeof *counts, 0);

    for (uint32_t r = 0; r < b->n_rows; r++) {
        const uint32_t begin = n;

        first[r] = n_spans;
        for (uint32_t bag = 0; bag < n_bags; bag++)
            for (uint32_t k = b->starts[bag]; k < b->starts[bag + 1]; k++)
                if (b->row_of[k] == r) {
                    if ((n - begin) % BAG_TRANSPOSE_SPAN == 0)
                        spans[n_spans++] = n;
                    bags[n++] = bag;
                }
    }
    spans[n_spans] = n;
    first[b->n_rows] = n_spans;
    counts[0] = b->n_rows;
    counts[1] = n_spans;
    j->transpose = (struct bag_transpose){
        b->n_rows + lab_below(lab, 9), n_keys + 3, counts, bags, spans, first
    };
    j->b.transpose = &j->transpose;
}

/* Of `dim` floats. The rows and sums lie at a multiple of 16 bytes without `shift`. */
static void run(struct lab *lab, struct job *j, uint32_t pad, size_t shift)
{
    const size_t n = j->b.n, n_rows = j->b.n_rows, dim = j->b.dim;
    const size_t n_sums = n * j->b.n_fields * dim;
    float *z = lab_floats(lab, n, 0);

    j->ld = j->b.n_fields * j->b.dim + pad;
    find_uses(lab, j);
    j->rows = lab_floats(lab, n_rows * dim, shift);
    j->dsums = lab_floats(lab, n * j->ld, shift);
    j->weights = lab_floats(lab, n_rows, 0);
    j->dz = lab_floats(lab, n, 0);
    j->sums = lab_blank(lab, (n_sums + n * pad) * sizeof(float), shift * sizeof(float));
    j->means = lab_blank(lab, n * j->ld * sizeof(float), shift * sizeof(float));
    j->drows = lab_blank(lab, n_rows * dim * sizeof(float), shift * sizeof(float));
    j->z = lab_blank(lab, n * sizeof(float), 0);
    j->dweights = lab_blank(lab, n_rows * sizeof(float), 0);
    j->scratch = lab_blank(lab, kernels_bag_grad_bytes(j->transpose.n_spans_max, j->b.dim), 0);
    lab_each_order(lab, run_all, j,
                   (struct lab_out[]){ { j->sums, n * j->ld * sizeof(float), NULL },
                                       { j->means, n * j->ld * sizeof(float), j->dsums },
                                       { j->drows, n_rows * dim * sizeof(float), NULL },
                                       { j->z, n * sizeof(float), z },
                                       { j->dweights, n_rows * sizeof(float), NULL },
                                       { 0 } });
    device_cpu.wide_sum(lab->cpu, &j->b, j->weights, z);
    lab_same(j->z, z, n);
}

static uint32_t n_uses(const struct job *j, uint32_t r)
{
    return j->transpose.spans[j->transpose.first[r + 1]] -
           j->transpose.spans[j->transpose.first[r]];
}

static void check_sums(struct lab *lab, const struct job *j)
{
    float *sums = lab_blank(lab, (size_t)j->b.n * j->ld * sizeof *sums, 0);

    device_cpu.bag_sum(lab->cpu, &j->b, j->rows, sums, j->ld);
    lab_same(j->sums, sums, (size_t)j->b.n * j->ld);
    memcpy(sums, j->dsums, (size_t)j->b.n * j->ld * sizeof *sums);
    device_cpu.bag_mean(lab->cpu, &j->b, j->b.n_fields / 2, j->b.n_fields, sums, j->ld);
    lab_same(j->means, sums, (size_t)j->b.n * j->ld);
}

/* Those of rows of few uses, bit for bit. */
static void check_few(struct lab *lab, const struct job *j)
{
    const struct bags *b = &j->b;
    float *drows = lab_blank(lab, (size_t)b->n_rows * b->dim * sizeof *drows, 0),
          *dweights = lab_blank(lab, b->n_rows * sizeof *dweights, 0);

    device_cpu.bag_grad(lab->cpu, b, j->dsums, j->ld, drows);
    device_cpu.wide_grad(lab->cpu, b, j->dz, dweights);
    for (uint32_t r = 0; r < b->n_rows; r++)
        if (n_uses(j, r) <= BAG_TRANSPOSE_SPAN) {
            lab_same(j->drows + r * b->dim, drows + r * b->dim, b->dim);
            lab_same(j->dweights + r, dweights + r, 1);
        }
}

/* Number `row` of sums of `width`: step is from a bag's numbers to the next bag's of its sample. */
static void check_double(struct lab *lab, const struct job *j, const float *dsums, uint32_t ld,
                         uint32_t step, uint32_t width, const float *got)
{
    const struct bags *b = &j->b;
    const size_t n = (size_t)b->n_rows * width;
    double *want = lab_blank(lab, n * sizeof *want, 0),
           *magnitude = lab_blank(lab, n * sizeof *magnitude, 0);

    for (size_t i = 0; i < n; i++)
        want[i] = magnitude[i] = 0;
    for (uint32_t bag = 0; bag < b->n * b->n_fields; bag++)
        for (uint32_t k = b->starts[bag]; k < b->starts[bag + 1]; k++)
            for (uint32_t d = 0; d < width; d++) {
                const double x = (double)
                    dsums[(size_t)(bag / b->n_fields) * ld + bag % b->n_fields * step + d];

                want[b->row_of[k] * width + d] += x;
                magnitude[b->row_of[k] * width + d] += fabs(x);
            }
    lab_near(got, want, magnitude, n, 1e-6);
}

static void check_grads(struct lab *lab, const struct job *j)
{
    check_few(lab, j);
    check_double(lab, j, j->dsums, j->ld, j->b.dim, j->b.dim, j->drows);
    check_double(lab, j, j->dz, 1, 0, 1, j->dweights);
}

/* Where kernels reach it. */
static const uint32_t *on_device(struct lab *lab, const uint32_t *from, size_t n)
{
    return memcpy(lab_blank(lab, n * sizeof *from, 0), from, n * sizeof *from);
}

static void bags_and_rows_sum_in_the_cpus_order(void **state)
{
    struct lab *lab = *state;

    for (uint32_t i = 0; i < 30; i++) {
        const uint32_t n_fields = 1 + lab_below(lab, 5),
                       dim = i % 2 ? 4 * (1 + lab_below(lab, 40)) : 1 + lab_below(lab, 40);
        struct batch batch;
        struct job j;

        fixture_batch_init(&batch, 12, 0, n_fields, 3 * 12 * n_fields);
        fixture_batch_fill(&batch, lab_below(lab, 12), &lab->rng);
        j = (struct job){ .b = { .n = batch.n,
                                 .n_fields = n_fields,
                                 .dim = dim,
                                 .n_rows = batch.n_unique,
                                 .starts = on_device(lab, batch.starts, batch.n * n_fields + 1),
                                 .row_of = on_device(lab, batch.row_of, batch.n_keys) } };
        run(lab, &j, i % 2 ? 4 * lab_below(lab, 2) : lab_below(lab, 4), i % 3 == 0);
        check_sums(lab, &j);
        check_grads(lab, &j);
        fixture_batch_deinit(&batch);
        lab_sweep(lab);
    }
}

/* n samples of one field; row r of n_uses has so many of them, and they take turns. */
static void check_many_uses(struct lab *lab, const uint32_t *n_uses_of, uint32_t n_rows,
                            uint32_t dim)
{
    uint32_t n = 0, left[16];
    struct job j;

    for (uint32_t r = 0; r < n_rows; r++) {
        left[r] = n_uses_of[r];
        n += n_uses_of[r];
    }
    {
        uint32_t *starts = lab_blank(lab, (n + 1) * sizeof *starts, 0),
                 *row_of = lab_blank(lab, n * sizeof *row_of, 0), r = 0;

        for (uint32_t k = 0; k < n; k++, r++) {
            while (!left[r % n_rows])
                r++;
            row_of[k] = r % n_rows;
            left[r % n_rows]--;
        }
        for (uint32_t k = 0; k <= n; k++)
            starts[k] = k;
        j = (struct job){ .b = { n, 1, dim, n_rows, starts, row_of, NULL } };
    }
    run(lab, &j, 0, 0);
    for (uint32_t r = 0; r < n_rows; r++)
        assert_int_equal(n_uses(&j, r), n_uses_of[r]);
    check_sums(lab, &j);
    check_grads(lab, &j);
    lab_sweep(lab);
}

static void a_row_of_many_uses_is_summed_span_by_span(void **state)
{
    static const uint32_t all[][6] = { { 1, 63, 64, 65, 1, 128 },
                                       { 129, 1, 64, 64, 3, 200 },
                                       { 65, 65, 1, 64, 1, 700 },
                                       { 64, 1, 1, 1, 1, 1 } };
    struct lab *lab = *state;

    for (size_t i = 0; i < COUNT_OF(all); i++) {
        check_many_uses(lab, all[i], 6, 8);
        check_many_uses(lab, all[i], 6, 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bags_and_rows_sum_in_the_cpus_order),
        cmocka_unit_test(a_row_of_many_uses_is_summed_span_by_span),
    };

    return cmocka_run_group_tests(tests, lab_open, lab_close);
}
