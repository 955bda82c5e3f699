/*
 * Embedding bags: a thread for each bag, or row, and four of its columns. So a row's floats are read by neighbours,
 * and a column's sum is made by one thread in the order that the CPU has.
 *
 * Gradients go by row, over the row's uses: those of a row with one span are summed at once. A row that has more is
 * used by thousands of bags of a large batch: its spans are summed side by side, then their sums, ascending.
 * All spans of a row but its last have BAG_TRANSPOSE_SPAN uses.
 */
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/words.h"

enum { TOGETHER = 8 };

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    bag_sum(struct bags b, const float *rows, float *sums, uint32_t ld)
{
    const uint32_t bag = (uint32_t)cuda_compat_row(), s = bag / b.n_fields,
                   f = bag % b.n_fields;
    const uint32_t d = cuda_compat_column() * N;
    struct cuda_compat_floats<N> sum = {}, row;
    uint32_t first, end;

    if (s >= b.n || d >= b.dim)
        return;
    first = b.starts[bag];
    end = b.starts[bag + 1];
    CUDA_COMPAT_UNROLL_4
    for (uint32_t k = first; k < end; k++) {
        row = dev_load<N>(rows + (size_t)b.row_of[k] * b.dim + d);
        for (int i = 0; i < N; i++)
            sum.at[i] += row.at[i];
    }
    dev_store(sums + (size_t)s * ld + f * b.dim + d, sum);
}

cudaError_t kernels_bag_sum(cudaStream_t stream, const struct bags *b, const float *rows,
                            float *sums, uint32_t ld)
{
    const size_t n_bags = (size_t)b->n * b->n_fields;

    if (dev_by_fours(rows, b->dim) && dev_by_fours(sums, ld))
        return cuda_compat_launch(bag_sum<4>, cuda_compat_grid(n_bags, b->dim / 4), stream, *b,
                                  rows, sums, ld);
    return cuda_compat_launch(bag_sum<1>, cuda_compat_grid(n_bags, b->dim), stream, *b, rows,
                              sums, ld);
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    bag_mean(struct bags b, uint32_t first, uint32_t n_fields, float *x, uint32_t ld)
{
    const uint32_t row = (uint32_t)cuda_compat_row(), s = row / n_fields,
                   f = first + row % n_fields;
    const uint32_t d = cuda_compat_column();
    uint32_t n;

    if (s >= b.n || d >= b.dim)
        return;
    n = b.starts[s * b.n_fields + f + 1] - b.starts[s * b.n_fields + f];
    if (n > 1)
        x[(size_t)s * ld + f * b.dim + d] /= (float)n;
}

cudaError_t kernels_bag_mean(cudaStream_t stream, const struct bags *b, uint32_t first,
                             uint32_t end, float *x, uint32_t ld)
{
    const uint32_t n_fields = end - first;

    return cuda_compat_launch(bag_mean, cuda_compat_grid((size_t)b->n * n_fields, b->dim),
                              stream, *b, first, n_fields, x, ld);
}

/* Where the gradient of a bag stands: `sums` + its sample * ld + its field * step. */
template <typename Kind> struct places {
    struct bag_transpose transpose;
    const typename Kind::number *sums;
    uint32_t n_fields, dim, ld, step;
};

/* Of uses first .. end - 1, ascending. So many loads are under way together. */
template <typename Kind, int N>
static __forceinline__ __device__ struct cuda_compat_floats<N>
sum_uses(const struct places<Kind> &p, uint32_t first, uint32_t end, uint32_t d) {
    struct cuda_compat_floats<N> sum = {
    };

    for (uint32_t i = first; i < end; i += TOGETHER) {
        const typename Kind::number *from[TOGETHER] = {};
        float more[TOGETHER][N] = {};

        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = 0; k < TOGETHER; k++)
            if (i + k < end) {
                const uint32_t bag = p.transpose.bags[i + k], s = bag / p.n_fields,
                               f = bag % p.n_fields;

                from[k] = p.sums + (size_t)s * p.ld + (size_t)f * p.step + d;
            }
        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = 0; k < TOGETHER; k++)
            if (i + k < end)
                Kind::load(from[k], more[k]);
        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = 0; k < TOGETHER; k++)
            for (uint32_t o = 0; o < N && i + k < end; o++)
                sum.at[o] += more[k][o];
    }
    return sum;
}

/* Of each span that shares its row with others: it is full, or the one before it is. (A row of exactly
 * BAG_TRANSPOSE_SPAN uses is taken for one of them, and the row after it: nobody reads those.) */
template <typename Kind, int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    sum_spans(struct places<Kind> p, float *parts)
{
    const size_t span = cuda_compat_row();
    const uint32_t d = cuda_compat_column() * N;
    uint32_t first, end;

    if (span >= p.transpose.counts[1] || d >= p.dim)
        return;
    first = p.transpose.spans[span];
    end = p.transpose.spans[span + 1];
    if (end - first < BAG_TRANSPOSE_SPAN &&
        (span == 0 || first - p.transpose.spans[span - 1] < BAG_TRANSPOSE_SPAN))
        return;
    dev_store(parts + span * p.dim + d, sum_uses<Kind, N>(p, first, end, d));
}

template <typename Kind, int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    sum_rows(struct places<Kind> p, const float *parts, float *drows)
{
    const size_t r = cuda_compat_row();
    const uint32_t d = cuda_compat_column() * N;
    struct cuda_compat_floats<N> sum = {}, more;
    uint32_t first, end;

    if (r >= p.transpose.counts[0] || d >= p.dim)
        return;
    first = p.transpose.first[r];
    end = p.transpose.first[r + 1];
    if (end - first == 1) {
        sum = sum_uses<Kind, N>(p, p.transpose.spans[first], p.transpose.spans[end], d);
    } else {
        CUDA_COMPAT_UNROLL_8
        for (uint32_t i = first; i < end; i++) {
            more = dev_load<N>(parts + (size_t)i * p.dim + d);
            for (uint32_t k = 0; k < N; k++)
                sum.at[k] += more.at[k];
        }
    }
    dev_store(drows + r * p.dim + d, sum);
}

template <typename Kind, int N>
static cudaError_t sum_all(cudaStream_t stream, const struct places<Kind> &p, float *drows,
                           float *parts)
{
    const uint32_t columns = p.dim / N;
    cudaError_t error = cuda_compat_launch((sum_spans<Kind, N>),
                                           cuda_compat_grid(p.transpose.n_spans_max, columns),
                                           stream, p, parts);

    return error ? error
                 : cuda_compat_launch((sum_rows<Kind, N>),
                                      cuda_compat_grid(p.transpose.n_rows_max, columns), stream,
                                      p, (const float *)parts, drows);
}

size_t kernels_bag_grad_bytes(uint32_t n_spans_max, uint32_t dim)
{
    return (size_t)n_spans_max * dim * sizeof(float);
}

cudaError_t kernels_bag_grad(cudaStream_t stream, const struct bags *b, const float *dsums,
                             uint32_t ld, float *drows, void *scratch)
{
    const struct places<tf32_words> p = {
        *b->transpose, dsums, b->n_fields, b->dim, ld, b->dim
    };

    if (dev_by_fours(dsums, ld) && dev_by_fours(drows, b->dim))
        return sum_all<tf32_words, 4>(stream, p, drows, (float *)scratch);
    return sum_all<tf32_words, 1>(stream, p, drows, (float *)scratch);
}

cudaError_t kernels_bf16_bag_grad(cudaStream_t stream, const struct bags *b, const bf16 *dsums,
                                  uint32_t ld, float *drows, void *scratch)
{
    const struct places<bf16_words> p = {
        *b->transpose, dsums, b->n_fields, b->dim, ld, b->dim
    };

    return sum_all<bf16_words, 8>(stream, p, drows, (float *)scratch);
}

cudaError_t kernels_wide_grad(cudaStream_t stream, const struct bags *b, const float *dz,
                              float *dweights, void *scratch)
{
    const struct places<tf32_words> p = {
        *b->transpose, dz, b->n_fields, 1, 1, 0
    };

    return sum_all<tf32_words, 1>(stream, p, dweights, (float *)scratch);
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    wide_sum(struct bags b, const float *weights, float *z)
{
    const size_t s = cuda_compat_index();
    uint32_t first, end;
    float sum = 0;

    if (s >= b.n)
        return;
    first = b.starts[s * b.n_fields];
    end = b.starts[(s + 1) * b.n_fields];
    CUDA_COMPAT_UNROLL_4
    for (uint32_t k = first; k < end; k++)
        sum += weights[b.row_of[k]];
    z[s] += sum;
}

cudaError_t kernels_wide_sum(cudaStream_t stream, const struct bags *b, const float *weights,
                             float *z)
{
    return cuda_compat_launch(wide_sum, cuda_compat_flat(b->n), stream, *b, weights, z);
}
