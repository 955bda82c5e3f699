/* Rows from the host's memory, over the bus, and from where they have stayed. */
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

/* A thread asks for its part of so many rows before it stores the first: with so many blocks 128 KB are under way at a
 * time, as much as the bus holds for its delay, and most multiprocessors are left to products that want one alone. */
enum { AT_ONCE = 4, BLOCKS_MAX = 8, BLOCKS_ALONE = 1024 };

static uint32_t blocks_of(const struct row_upload *u, uint32_t n)
{
    const uint32_t most = u->alone ? BLOCKS_ALONE : BLOCKS_MAX;

    return n < most ? n : most;
}

/* Neighbouring threads read neighbouring floats of the host's memory, and all that they read is needed: so the bus
 * carries it nearly as fast as a copy (Min et al., EMOGI, VLDB 2021). */
static __forceinline__ __device__ const float *source_of(const struct row_upload &u, size_t r,
                                                         uint32_t how)
{
    if (how & DEVICE_ROW_KEPT)
        return u.kept + (size_t)(how & ~DEVICE_ROW_KEPT) * u.dim;
    return u.host + r * u.dim;
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) upload(struct row_upload u)
{
    const size_t stride = (size_t)gridDim.x * blockDim.y;
    const uint32_t column = cuda_compat_column() * N;
    struct cuda_compat_floats<N> v[AT_ONCE];
    uint32_t how[AT_ONCE];

    if (column >= u.dim)
        return;
    for (size_t first = cuda_compat_row(); first < u.n; first += AT_ONCE * stride) {
        CUDA_COMPAT_UNROLL_4
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const size_t r = first + k * stride;

            if (r >= u.n)
                continue;
            how[k] = u.how[r];
            v[k] = dev_load<N>(source_of(u, r, how[k]) + column);
        }
        CUDA_COMPAT_UNROLL_4
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const size_t r = first + k * stride;

            if (r >= u.n)
                continue;
            dev_store(u.rows + r * u.dim + column, v[k]);
            if (how[k] < DEVICE_ROW_NEW) /* and not there */
                dev_store(u.kept + (size_t)how[k] * u.dim + column, v[k]);
        }
    }
}

/* States of rows that are to stay; no thread needs them now. */
template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) upload_states(struct row_upload u)
{
    const size_t stride = (size_t)gridDim.x * blockDim.y;
    const uint32_t column = cuda_compat_column() * N;

    if (column >= u.n_states)
        return;
    CUDA_COMPAT_UNROLL_4
    for (size_t r = cuda_compat_row(); r < u.n; r += stride)
        if (u.how[r] < DEVICE_ROW_NEW)
            dev_store(u.states + (size_t)u.how[r] * u.n_states + column,
                      dev_load<N>(u.host_states + r * u.n_states + column));
}

static cudaError_t launch_states(cudaStream_t stream, const struct row_upload *u)
{
    const bool by_fours =
        dev_by_fours(u->host_states, u->n_states) && dev_by_fours(u->states, u->n_states);
    struct cuda_compat_shape shape =
        cuda_compat_grid(u->n, by_fours ? u->n_states / 4 : u->n_states);

    shape.grid.x = blocks_of(u, shape.grid.x);
    if (by_fours)
        return cuda_compat_launch(upload_states<4>, shape, stream, *u);
    return cuda_compat_launch(upload_states<1>, shape, stream, *u);
}

static cudaError_t launch_rows(cudaStream_t stream, const struct row_upload *u)
{
    const bool by_fours = dev_by_fours(u->host, u->dim) && dev_by_fours(u->rows, u->dim) &&
                          dev_by_fours(u->kept, u->dim);
    struct cuda_compat_shape shape = cuda_compat_grid(u->n, by_fours ? u->dim / 4 : u->dim);

    shape.grid.x = blocks_of(u, shape.grid.x);
    if (by_fours)
        return cuda_compat_launch(upload<4>, shape, stream, *u);
    return cuda_compat_launch(upload<1>, shape, stream, *u);
}

cudaError_t kernels_upload_rows(cudaStream_t stream, const struct row_upload *u)
{
    const cudaError_t rows = launch_rows(stream, u);

    return rows == cudaSuccess && u->n_states ? launch_states(stream, u) : rows;
}
