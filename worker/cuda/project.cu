/*
 * Rows of several tables made as wide as the model, and their gradients: for each table products of a tall matrix, its
 * rows, with a small one. A block makes TALL x NARROW numbers of a product, each thread TALL / NARROW of one column;
 * sums run over the inner index, ascending, a thread has all of a sum. So the bits are those of the plain loop:
 * behind the inner index' end only zeros are added.
 *
 * How many rows a table has stands in the device's memory. The grid has as many blocks as any tables' rows can need,
 * and each block looks for its table. dw is summed over parts of the rows side by side, then over the parts, ascending.
 */
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

enum {
    TALL = 64,
    NARROW = 16,
    DEEP = 16, /* of the inner index at a time */
    EACH = TALL / NARROW,
    THREADS = NARROW * NARROW,
    STRIDE = DEEP + 1 /* of staged rows: neighbours in other banks */
};

/* Of a table's dw: parts at most, rows of a part at least, blocks about. */
#define PARTS_MAX 128u
#define PART_ROWS 256u
#define BLOCKS 1024u

/* Number (i, k) of n x depth is at[i * step + k * deep_step]; one of the steps is 1. */
struct operand {
    const float *at;
    uint32_t n, depth;
    uint32_t step, deep_step;
};

/* Rows first .. of an operand, DEEP numbers of each from `k` on: zeros where there are none. */
template <int N>
static __forceinline__ __device__ void stage(const struct operand &o, uint32_t first,
                                             uint32_t k, float *to)
{
    for (uint32_t e = threadIdx.y * NARROW + threadIdx.x; e < N * DEEP; e += THREADS) {
        const uint32_t row = o.deep_step == 1 ? e / DEEP : e % N,
                       deep = o.deep_step == 1 ? e % DEEP : e / N;
        const bool is_there = first + row < o.n && k + deep < o.depth;

        to[row * STRIDE + deep] =
            is_there ? o.at[(size_t)(first + row) * o.step + (size_t)(k + deep) * o.deep_step]
                     : 0;
    }
}

/* Numbers (i + threadIdx.y + NARROW q, j + threadIdx.x) of a b^T. All threads of a block call it. */
static __forceinline__ __device__ void product(const struct operand &a, uint32_t i,
                                               const struct operand &b, uint32_t j,
                                               float sums[EACH])
{
    float *as = cuda_compat_shared<float>(), *bs = as + TALL * STRIDE;

    for (uint32_t q = 0; q < EACH; q++)
        sums[q] = 0;
    for (uint32_t k = 0; k < a.depth; k += DEEP) {
        stage<TALL>(a, i, k, as);
        stage<NARROW>(b, j, k, bs);
        __syncthreads();
        CUDA_COMPAT_UNROLL_16
        for (uint32_t d = 0; d < DEEP; d++)
            for (uint32_t q = 0; q < EACH; q++)
                sums[q] +=
                    as[(threadIdx.y + NARROW * q) * STRIDE + d] * bs[threadIdx.x * STRIDE + d];
        __syncthreads();
    }
}

/* TALL rows of a table: rows first + row .. of the n that it has. */
struct place {
    uint32_t group, first, n, row;
    size_t floats; /* of packed rows before the table's */
};

/* False: there are fewer. */
static __forceinline__ __device__ bool find(const struct row_projection &p, uint32_t tile,
                                            struct place *ret)
{
    size_t floats = 0;

    for (uint32_t g = 0; g < p.n_groups; g++) {
        const uint32_t first = p.starts[g], n = p.starts[g + 1] - first,
                       n_tiles = (n + TALL - 1) / TALL;

        if (tile < n_tiles) {
            *ret = { g, first, n, tile * TALL, floats };
            return true;
        }
        tile -= n_tiles;
        floats += (size_t)n * p.groups[g].dim;
    }
    return false;
}

/* This block's part of the table's rows to `to` [n][width], as the product or, without a matrix, as they are. */
static __forceinline__ __device__ void make_rows(const struct place &at,
                                                 const struct operand &rows,
                                                 const struct operand &w, float *to,
                                                 uint32_t width)
{
    const uint32_t j = blockIdx.y * NARROW;
    float sums[EACH];

    if (w.at)
        product(rows, at.row, w, j, sums);
    for (uint32_t q = 0; q < EACH; q++) {
        const uint32_t row = at.row + threadIdx.y + NARROW * q, column = j + threadIdx.x;

        if (row < at.n && column < width)
            to[(size_t)row * width + column] =
                w.at ? sums[q] : rows.at[(size_t)row * width + column];
    }
}

static __global__ void __launch_bounds__(THREADS)
    forward(struct row_projection p, const float *rows, float *wide)
{
    struct place at;

    if (!find(p, blockIdx.x, &at))
        return;
    const struct row_projection_group &g = p.groups[at.group];
    make_rows(at, { rows + at.floats, at.n, g.dim, g.dim, 1 }, { g.w, p.dim, g.dim, g.dim, 1 },
              wide + (size_t)at.first * p.dim, p.dim);
}

static __global__ void __launch_bounds__(THREADS)
    back_to_rows(struct row_projection p, const float *dwide, float *drows)
{
    struct place at;

    if (!find(p, blockIdx.x, &at))
        return;
    const struct row_projection_group &g = p.groups[at.group];
    if (blockIdx.y * NARROW >= g.dim)
        return;
    make_rows(at, { dwide + (size_t)at.first * p.dim, at.n, p.dim, p.dim, 1 },
              { g.w, g.dim, p.dim, 1, g.dim }, drows + at.floats, g.dim);
}

/* How a table's dw is made: as blocks of TALL x NARROW, each over so many parts of its rows at most. */
struct tiling {
    uint32_t n_columns, n_blocks, n_parts;
};

static __forceinline__ __host__ __device__ struct tiling
tiling_of(const struct row_projection &p, uint32_t g)
{
    const uint32_t n_columns = cuda_compat_ceil_div(p.groups[g].dim, NARROW),
                   n_blocks = cuda_compat_ceil_div(p.dim, TALL) * n_columns,
                   n_parts = n_blocks < BLOCKS ? BLOCKS / n_blocks : 1;

    return { n_columns, n_blocks, n_parts < PARTS_MAX ? n_parts : PARTS_MAX };
}

/* Rows of a part of n. */
static __forceinline__ __device__ uint32_t part_rows(const struct tiling &tiling, uint32_t n)
{
    const uint32_t even = cuda_compat_ceil_div(n, tiling.n_parts);

    return even > PART_ROWS ? even : PART_ROWS;
}

/* Where the parts of table g begin; of the table behind the last: how many floats there are. */
static __forceinline__ __host__ __device__ size_t parts_before(const struct row_projection &p,
                                                               uint32_t g)
{
    size_t n = 0;

    for (uint32_t i = 0; i < g; i++)
        if (p.groups[i].w)
            n += (size_t)tiling_of(p, i).n_parts * p.dim * p.groups[i].dim;
    return n;
}

static __forceinline__ __device__ size_t floats_before(const struct row_projection &p,
                                                       uint32_t g)
{
    size_t n = 0;

    for (uint32_t i = 0; i < g; i++)
        n += (size_t)(p.starts[i + 1] - p.starts[i]) * p.groups[i].dim;
    return n;
}

static __global__ void __launch_bounds__(THREADS)
    back_to_parts(struct row_projection p, const float *rows, const float *dwide, float *parts)
{
    const uint32_t part = blockIdx.x, g = blockIdx.z, dim = p.groups[g].dim;
    const uint32_t n = p.starts[g + 1] - p.starts[g];
    const struct tiling tiling = tiling_of(p, g);
    const uint32_t row = part * part_rows(tiling, n);
    const uint32_t i = blockIdx.y / tiling.n_columns * TALL,
                   j = blockIdx.y % tiling.n_columns * NARROW;
    float sums[EACH];

    if (!p.groups[g].w || part >= tiling.n_parts || row >= n || i >= p.dim)
        return;
    const uint32_t most = part_rows(tiling, n), depth = n - row < most ? n - row : most;
    product({ dwide + (size_t)(p.starts[g] + row) * p.dim, p.dim, depth, 1, p.dim }, i,
            { rows + floats_before(p, g) + (size_t)row * dim, dim, depth, 1, dim }, j, sums);
    parts += parts_before(p, g) + (size_t)part * p.dim * dim;
    for (uint32_t q = 0; q < EACH; q++) {
        const uint32_t y = i + threadIdx.y + NARROW * q, x = j + threadIdx.x;

        if (y < p.dim && x < dim)
            parts[(size_t)y * dim + x] = sums[q];
    }
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    back_to_weights(struct row_projection p, const float *parts)
{
    const uint32_t g = blockIdx.y, n = p.starts[g + 1] - p.starts[g];
    const size_t e = cuda_compat_index(), n_floats = (size_t)p.dim * p.groups[g].dim;
    float sum = 0;

    if (!p.groups[g].w || e >= n_floats)
        return;
    parts += parts_before(p, g) + e;
    const uint32_t n_parts = cuda_compat_ceil_div(n, part_rows(tiling_of(p, g), n));
    CUDA_COMPAT_UNROLL_8
    for (uint32_t i = 0; i < n_parts; i++)
        sum += parts[i * n_floats];
    p.groups[g].dw[e] = sum;
}

static uint32_t dim_max(const struct row_projection *p)
{
    uint32_t most = 0;

    for (uint32_t g = 0; g < p->n_groups; g++)
        most = p->groups[g].dim > most ? p->groups[g].dim : most;
    return most;
}

/* A table's rows may end within a block. */
static struct cuda_compat_shape shape_of(const struct row_projection *p, uint32_t width)
{
    return { dim3(p->n_rows_max / TALL + p->n_groups, cuda_compat_ceil_div(width, NARROW)),
             dim3(NARROW, NARROW), (TALL + NARROW) * STRIDE * sizeof(float) };
}

size_t kernels_project_bytes(const struct row_projection *p)
{
    return parts_before(*p, p->n_groups) * sizeof(float);
}

cudaError_t kernels_project_forward(cudaStream_t stream, const struct row_projection *p,
                                    const float *rows, float *wide)
{
    return cuda_compat_launch(forward, shape_of(p, p->dim), stream, *p, rows, wide);
}

cudaError_t kernels_project_backward(cudaStream_t stream, const struct row_projection *p,
                                     const float *rows, const float *dwide, float *drows,
                                     void *scratch)
{
    const uint32_t most = dim_max(p), n_parts = cuda_compat_ceil_div(p->n_rows_max, PART_ROWS);
    struct cuda_compat_shape by_part = shape_of(p, most),
                             all = cuda_compat_flat((size_t)p->dim * most);
    cudaError_t error = cuda_compat_launch(back_to_rows, by_part, stream, *p, dwide, drows);

    by_part.grid = dim3(n_parts < PARTS_MAX ? n_parts : PARTS_MAX,
                        cuda_compat_ceil_div(p->dim, TALL) * cuda_compat_ceil_div(most, NARROW),
                        p->n_groups);
    all.grid.y = p->n_groups;
    if (!error)
        error = cuda_compat_launch(back_to_parts, by_part, stream, *p, rows, dwide,
                                   (float *)scratch);
    return error ? error
                 : cuda_compat_launch(back_to_weights, all, stream, *p, (const float *)scratch);
}
