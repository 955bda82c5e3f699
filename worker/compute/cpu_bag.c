/* Embedding bags. Rows are taken CPU_LANES floats at a time: an accumulator of known length
 * stays in a register. */
#include "worker/compute/cpu.h"

#include <string.h>

CPU_CLONES static void sum_bag(const struct bags *b, size_t bag, const float *rows,
                               float *restrict sum)
{
    const uint32_t dim = b->dim, first = b->starts[bag], end = b->starts[bag + 1];
    uint32_t d = 0;

    for (; d + CPU_LANES <= dim; d += CPU_LANES) {
        cpu_lanes acc = { 0 };

        for (uint32_t j = first; j < end; j++)
            acc += *(const cpu_lanes *)(rows + (size_t)b->row_of[j] * dim + d);
        *(cpu_lanes *)(sum + d) = acc;
    }
    for (; d < dim; d++) {
        float acc = 0;

        for (uint32_t j = first; j < end; j++)
            acc += rows[(size_t)b->row_of[j] * dim + d];
        sum[d] = acc;
    }
}

void cpu_bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                 uint32_t ld)
{
    (void)c;
    for (size_t s = 0; s < b->n; s++)
        for (size_t f = 0; f < b->n_fields; f++)
            sum_bag(b, s * b->n_fields + f, rows, sums + s * ld + f * b->dim);
}

CPU_CLONES static void add_bag(const struct bags *b, size_t bag, const float *restrict dsum,
                               float *restrict drows)
{
    const uint32_t dim = b->dim;

    for (uint32_t j = b->starts[bag]; j < b->starts[bag + 1]; j++) {
        float *drow = drows + (size_t)b->row_of[j] * dim;
        uint32_t d = 0;

        for (; d + CPU_LANES <= dim; d += CPU_LANES)
            *(cpu_lanes *)(drow + d) += *(const cpu_lanes *)(dsum + d);
        for (; d < dim; d++)
            drow[d] += dsum[d];
    }
}

/* Adding bag after bag visits the positions of each row in ascending order. */
void cpu_bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                  float *drows)
{
    (void)c;
    if (b->n_rows)
        memset(drows, 0, (size_t)b->n_rows * b->dim * sizeof *drows);
    for (size_t s = 0; s < b->n; s++)
        for (size_t f = 0; f < b->n_fields; f++)
            add_bag(b, s * b->n_fields + f, dsums + s * ld + f * b->dim, drows);
}

void cpu_bag_wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z)
{
    (void)c;
    for (size_t s = 0; s < b->n; s++) {
        float sum = 0;

        for (uint32_t j = b->starts[s * b->n_fields]; j < b->starts[(s + 1) * b->n_fields]; j++)
            sum += weights[b->row_of[j]];
        z[s] += sum;
    }
}

void cpu_bag_wide_grad(struct compute *c, const struct bags *b, const float *dz,
                       float *dweights)
{
    (void)c;
    if (b->n_rows)
        memset(dweights, 0, b->n_rows * sizeof *dweights);
    for (size_t s = 0; s < b->n; s++)
        for (uint32_t j = b->starts[s * b->n_fields]; j < b->starts[(s + 1) * b->n_fields]; j++)
            dweights[b->row_of[j]] += dz[s];
}
