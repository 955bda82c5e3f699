/* Rows from the host's memory, over the bus, and from where they have stayed. */
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

/* A thread asks for its part of so many rows before it stores the first: with so many blocks 128 KB are under way at a
 * time, as much as the bus holds for its delay, and most multiprocessors are left to products that want one alone. */
enum { AT_ONCE = 4, BLOCKS_MAX = 8 };

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

cudaError_t kernels_upload_rows(cudaStream_t stream, const struct row_upload *u)
{
    const bool by_fours = dev_by_fours(u->host, u->dim) && dev_by_fours(u->rows, u->dim) &&
                          dev_by_fours(u->kept, u->dim);
    struct cuda_compat_shape shape = cuda_compat_grid(u->n, by_fours ? u->dim / 4 : u->dim);

    if (shape.grid.x > BLOCKS_MAX)
        shape.grid.x = BLOCKS_MAX;
    if (by_fours)
        return cuda_compat_launch(upload<4>, shape, stream, *u);
    return cuda_compat_launch(upload<1>, shape, stream, *u);
}
