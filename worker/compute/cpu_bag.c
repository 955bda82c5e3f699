/*
 * Embedding bags. Rows are taken CPU_LANES floats at a time: an accumulator of known length
 * stays in a register. Gradients of rows are shared out by row: each task walks all positions,
 * which are few bytes, and adds to the rows of its own range, so that a row's sum is made by
 * one thread in ascending order of position.
 */
#include <string.h>

#include "common/simd.h"
#include "worker/compute/cpu_internal.h"

enum {
    AHEAD = 24,      /* positions whose rows are on their way to the cache */
    POSITIONS = 1024 /* looked through at a time for those of a range */
};

struct job {
    const struct bags *b;
    const float *rows, *dsums;
    float *sums, *drows;
    const float *weights;
    float *z;
    uint32_t ld, n_ranges;
    struct cpu_range fields;
};

SIMD_INLINE void sum_bag(const uint32_t *row_of, uint32_t n, const float *rows, uint32_t dim,
                         float *restrict sum)
{
    uint32_t d = 0;

    for (; d + CPU_LANES <= dim; d += CPU_LANES) {
        cpu_lanes acc = { 0 };

        for (uint32_t j = 0; j < n; j++)
            acc += *(const cpu_lanes *)(rows + (size_t)row_of[j] * dim + d);
        *(cpu_lanes *)(sum + d) = acc;
    }
    for (; d < dim; d++) {
        float acc = 0;

        for (uint32_t j = 0; j < n; j++)
            acc += rows[(size_t)row_of[j] * dim + d];
        sum[d] = acc;
    }
}

CPU_CLONES static void sum_samples(const struct bags *b, struct cpu_range r, const float *rows,
                                   float *sums, uint32_t ld)
{
    const uint32_t n_keys = b->starts[(size_t)b->n * b->n_fields];

    for (size_t s = r.first; s < r.end; s++)
        for (size_t f = 0; f < b->n_fields; f++) {
            const uint32_t *starts = b->starts + s * b->n_fields + f, at = starts[0];

            if (at + AHEAD < n_keys)
                __builtin_prefetch(rows + (size_t)b->row_of[at + AHEAD] * b->dim);
            sum_bag(b->row_of + at, starts[1] - at, rows, b->dim, sums + s * ld + f * b->dim);
        }
}

static void sum_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;

    (void)thread;
    sum_samples(j->b, cpu_range_of(task, CPU_SAMPLES, j->b->n), j->rows, j->sums, j->ld);
}

void cpu_bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                 uint32_t ld)
{
    struct job job = { .b = b, .rows = rows, .sums = sums, .ld = ld };

    if (b->n_fields)
        cpu_run(c, cpu_ceil_div(b->n, CPU_SAMPLES), sum_task, &job);
}

SIMD_INLINE void add_row(const float *restrict dsum, uint32_t dim, float *restrict drow)
{
    uint32_t d = 0;

    for (; d + CPU_LANES <= dim; d += CPU_LANES)
        *(cpu_lanes *)(drow + d) += *(const cpu_lanes *)(dsum + d);
    for (; d < dim; d++)
        drow[d] += dsum[d];
}

/* A position in the bags, and where its bag's gradient stands. */
struct cursor {
    size_t bag, at;
    uint32_t field;
};

/* A position of a range of rows. */
struct hit {
    size_t at; /* of its bag's gradient */
    uint32_t row;
};

/* Those of positions first .. end - 1; space for one more. */
SIMD_INLINE uint32_t find_hits(const struct job *j, struct cpu_range positions,
                               struct cpu_range rows, struct cursor *cur, struct hit *hits)
{
    const struct bags *b = j->b;
    const uint32_t width = rows.end - rows.first;
    uint32_t n = 0;

    for (uint32_t p = positions.first; p < positions.end; p++) {
        for (; b->starts[cur->bag + 1] <= p; cur->bag++) {
            cur->at += b->dim;
            if (++cur->field == b->n_fields) {
                cur->field = 0;
                cur->at += j->ld - (size_t)b->n_fields * b->dim;
            }
        }
        hits[n] = (struct hit){ cur->at, b->row_of[p] };
        n += b->row_of[p] - rows.first < width; /* no branch: it would be the toss of a coin */
    }
    return n;
}

CPU_CLONES static void add_range(const struct job *j, struct cpu_range rows)
{
    const struct bags *b = j->b;
    const uint32_t n_keys = b->starts[(size_t)b->n * b->n_fields];
    struct hit hits[POSITIONS + 1];
    struct cursor cur = { 0 };

    for (uint32_t p = 0; p < n_keys; p += POSITIONS) {
        const uint32_t n = find_hits(j, (struct cpu_range){ p, cpu_min(n_keys, p + POSITIONS) },
                                     rows, &cur, hits);

        for (uint32_t i = 0; i < n; i++) {
            if (i + AHEAD < n)
                __builtin_prefetch(j->drows + (size_t)hits[i + AHEAD].row * b->dim, 1);
            add_row(j->dsums + hits[i].at, b->dim, j->drows + (size_t)hits[i].row * b->dim);
        }
    }
}

static void grad_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct cpu_range r =
        cpu_range_of(task, cpu_ceil_div(j->b->n_rows, j->n_ranges), j->b->n_rows);

    (void)thread;
    if (r.first >= r.end)
        return;
    memset(j->drows + (size_t)r.first * j->b->dim, 0,
           (size_t)(r.end - r.first) * j->b->dim * sizeof *j->drows);
    add_range(j, r);
}

void cpu_bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                  float *drows)
{
    struct job job = { .b = b,
                       .dsums = dsums,
                       .ld = ld,
                       .drows = drows,
                       .n_ranges = thread_pool_n_threads(c->pool) };

    cpu_run(c, b->n_rows ? job.n_ranges : 0, grad_task, &job);
}

CPU_CLONES static void divide(float *x, uint32_t dim, float by)
{
    for (uint32_t d = 0; d < dim; d++)
        x[d] /= by;
}

static void mean_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct bags *b = j->b;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, b->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        for (size_t f = j->fields.first; f < j->fields.end; f++) {
            const uint32_t *starts = b->starts + s * b->n_fields + f;

            if (starts[1] - starts[0] > 1)
                divide(j->sums + s * j->ld + f * b->dim, b->dim,
                       (float)(starts[1] - starts[0]));
        }
}

void cpu_bag_mean(struct compute *c, const struct bags *b, uint32_t first, uint32_t end,
                  float *x, uint32_t ld)
{
    struct job job = { .b = b, .sums = x, .ld = ld, .fields = { first, end } };

    cpu_run(c, cpu_ceil_div(b->n, CPU_SAMPLES), mean_task, &job);
}

static void wide_sum_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct bags *b = j->b;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, b->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++) {
        float sum = 0;

        for (uint32_t k = b->starts[s * b->n_fields]; k < b->starts[(s + 1) * b->n_fields]; k++)
            sum += j->weights[b->row_of[k]];
        j->z[s] += sum;
    }
}

void cpu_bag_wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z)
{
    struct job job = { .b = b, .weights = weights, .z = z };

    cpu_run(c, cpu_ceil_div(b->n, CPU_SAMPLES), wide_sum_task, &job);
}

/* A float a position: not worth a second thread. */
void cpu_bag_wide_grad(struct compute *c, const struct bags *b, const float *dz,
                       float *dweights)
{
    (void)c;
    if (b->n_rows)
        memset(dweights, 0, b->n_rows * sizeof *dweights);
    for (size_t s = 0; s < b->n; s++)
        for (uint32_t k = b->starts[s * b->n_fields]; k < b->starts[(s + 1) * b->n_fields]; k++)
            dweights[b->row_of[k]] += dz[s];
}
