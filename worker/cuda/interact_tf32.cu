/*
 * Pairwise dot products of a sample's vectors on tensor cores, in TF32: inputs are rounded to nearest, ties away from
 * zero, sums are fp32. A warp takes a sample. Its vectors are the rows of X, filled up with zeros to ROWS = 16 or 32,
 * staged in shared memory a few floats apart, so that fragments come without bank conflicts.
 *
 *     forward    Z = X X^T, of which the tiles on and below the diagonal are made
 *     backward   dX = G X, G the symmetric matrix of the pairs' gradients, its diagonal doubled
 */
#include "worker/cuda/interact.h"

using namespace nvcuda;

enum {
    WARPS = 2, /* of a block: little shared memory each, so that many blocks fit */
    TILE = 16,
    DEPTH = 8,
    SKEW = 4
};

typedef wmma::fragment<wmma::accumulator, TILE, TILE, DEPTH, float> tile_sum;
typedef wmma::fragment<wmma::matrix_a, TILE, TILE, DEPTH, wmma::precision::tf32,
                       wmma::row_major>
    tile_left;
typedef wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, wmma::precision::tf32,
                       wmma::col_major>
    tile_turned;
typedef wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, wmma::precision::tf32,
                       wmma::row_major>
    tile_right;

/* Arrays are indexed by fours where fours are stored: so nvcc knows that they lie at multiples of 16 bytes. */
typedef struct cuda_compat_floats<4> quad;

/* Floats of shared memory of a warp: X; then, in the way back, G or a column of tiles of dX. Forward, Z
 * takes X's place. */
template <int DIM, int ROWS> struct warp_layout {
    enum {
        X_LD = DIM + SKEW,
        Z_LD = ROWS + SKEW,
        X = ROWS * X_LD,
        Z = ROWS * Z_LD,
        FORWARD = X > Z ? X : Z,
        BACKWARD = X + Z
    };
};

/* X, rounded. So many loads of a lane are under way together that a few warps keep the memory busy. */
template <int DIM, int ROWS>
static __forceinline__ __device__ void stage(const float *t, uint32_t n_vectors, float *x)
{
    constexpr uint32_t LOADS = ROWS * DIM / 4 / CUDA_COMPAT_WARP,
                       TOGETHER = LOADS < 8 ? LOADS : 8;
    const quad *from = (const quad *)t;
    quad *to = (quad *)x, v[TOGETHER];

    for (uint32_t first = 0; first < LOADS; first += TOGETHER) {
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const uint32_t i = (first + k) * CUDA_COMPAT_WARP + threadIdx.x,
                           row = i / (DIM / 4);

            v[k] = {};
            if (row < n_vectors)
                v[k] = from[i];
        }
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const uint32_t i = (first + k) * CUDA_COMPAT_WARP + threadIdx.x,
                           row = i / (DIM / 4);

            for (float &f : v[k].at)
                f = wmma::__float_to_tf32(f);
            to[row * (warp_layout<DIM, ROWS>::X_LD / 4) + i % (DIM / 4)] = v[k];
        }
    }
    __syncwarp();
}

/* Z into shared memory, over X. */
template <int DIM, int ROWS> static __forceinline__ __device__ void products(float *x)
{
    enum {
        TILES = ROWS / TILE,
        X_LD = warp_layout<DIM, ROWS>::X_LD,
        Z_LD = warp_layout<DIM, ROWS>::Z_LD
    };
    tile_sum z[TILES][TILES];
    tile_left left[TILES];
    tile_turned turned[TILES];

    for (int i = 0; i < TILES; i++)
        for (int j = 0; j <= i; j++)
            wmma::fill_fragment(z[i][j], 0.0f);
    for (int d = 0; d < DIM; d += DEPTH) {
        for (int i = 0; i < TILES; i++) {
            wmma::load_matrix_sync(left[i], x + i * TILE * X_LD + d, X_LD);
            wmma::load_matrix_sync(turned[i], x + i * TILE * X_LD + d, X_LD);
        }
        for (int i = 0; i < TILES; i++)
            for (int j = 0; j <= i; j++)
                wmma::mma_sync(z[i][j], left[i], turned[j], z[i][j]);
    }
    __syncwarp();
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j <= i; j++)
            wmma::store_matrix_sync(x + i * TILE * Z_LD + j * TILE, z[i][j], Z_LD,
                                    wmma::mem_row_major);
    __syncwarp();
}

template <int DIM, int ROWS>
static __global__ void __launch_bounds__(WARPS *CUDA_COMPAT_WARP)
    forward(struct interact it, const float *t, float *r)
{
    const size_t s = cuda_compat_row();
    const uint32_t lane = threadIdx.x;
    float *x = cuda_compat_shared<float>() + threadIdx.y * warp_layout<DIM, ROWS>::FORWARD;

    if (s >= it.n)
        return;
    t += s * it.n_vectors * DIM;
    r += s * interact_ldr(it);
    stage<DIM, ROWS>(t, it.n_vectors, x);
    for (uint32_t d = lane; d < it.direct; d += CUDA_COMPAT_WARP)
        r[d] = t[d];
    products<DIM, ROWS>(x);
    for (uint32_t i = 0; i < it.n_vectors; i++)
        if (lane < i + it.self)
            r[it.direct + interact_row(i, it.self) + lane] =
                x[i * warp_layout<DIM, ROWS>::Z_LD + lane];
}

/* G, rounded: pairs are read as they stand, TILE rows of them at once, and written on both sides of the diagonal. */
template <int ROWS>
static __forceinline__ __device__ void stage_slopes(const struct interact &it, const float *dz,
                                                    float *g)
{
    const uint32_t lane = threadIdx.x, ld = ROWS + SKEW;
    float slope[TILE];

    for (uint32_t first = 0; first < ROWS; first += TILE) {
        CUDA_COMPAT_UNROLL_16
        for (uint32_t k = 0; k < TILE; k++) {
            const uint32_t i = first + k;

            slope[k] = 0;
            if (i < it.n_vectors && lane < i + it.self)
                slope[k] = dz[interact_row(i, it.self) + lane];
        }
        CUDA_COMPAT_UNROLL_16
        for (uint32_t k = 0; k < TILE; k++) {
            const uint32_t i = first + k;
            const float rounded = wmma::__float_to_tf32(slope[k]);

            if (lane < i)
                g[i * ld + lane] = g[lane * ld + i] = rounded;
            else if (lane == i)
                g[i * ld + i] = 2 * rounded;
        }
    }
    __syncwarp();
}

/* Columns d .. d + TILE - 1 of G X, staged in `to`, TILE + SKEW floats a row. */
template <int DIM, int ROWS>
static __forceinline__ __device__ void
column_of_tiles(const tile_left (&g)[ROWS / TILE][ROWS / DEPTH], const float *x, uint32_t d,
                float *to)
{
    enum { TILES = ROWS / TILE, X_LD = warp_layout<DIM, ROWS>::X_LD };
    tile_sum sum[TILES];
    tile_right right;

    for (int i = 0; i < TILES; i++)
        wmma::fill_fragment(sum[i], 0.0f);
    for (int j = 0; j < ROWS / DEPTH; j++) {
        wmma::load_matrix_sync(right, x + j * DEPTH * X_LD + d, X_LD);
        for (int i = 0; i < TILES; i++)
            wmma::mma_sync(sum[i], g[i][j], right, sum[i]);
    }
    for (int i = 0; i < TILES; i++)
        wmma::store_matrix_sync(to + i * TILE * (TILE + SKEW), sum[i], TILE + SKEW,
                                wmma::mem_row_major);
    __syncwarp();
}

template <int DIM, int ROWS>
static __global__ void __launch_bounds__(WARPS *CUDA_COMPAT_WARP)
    backward(struct interact it, const float *t, const float *dr, float *dt)
{
    const size_t s = cuda_compat_row();
    float *x = cuda_compat_shared<float>() + threadIdx.y * warp_layout<DIM, ROWS>::BACKWARD;
    float *g = x + warp_layout<DIM, ROWS>::X;
    tile_left slopes[ROWS / TILE][ROWS / DEPTH];

    if (s >= it.n)
        return;
    t += s * it.n_vectors * DIM;
    dt += s * it.n_vectors * DIM;
    dr += s * interact_ldr(it) + it.direct;
    stage<DIM, ROWS>(t, it.n_vectors, x);
    stage_slopes<ROWS>(it, dr, g);
    for (int i = 0; i < ROWS / TILE; i++)
        for (int j = 0; j < ROWS / DEPTH; j++)
            wmma::load_matrix_sync(slopes[i][j], g + i * TILE * (ROWS + SKEW) + j * DEPTH,
                                   ROWS + SKEW);
    __syncwarp();
    for (uint32_t d = 0; d < DIM; d += TILE) {
        column_of_tiles<DIM, ROWS>(slopes, x, d, g);
        for (uint32_t i = threadIdx.x; i < it.n_vectors * (TILE / 4); i += CUDA_COMPAT_WARP) {
            const uint32_t row = i / (TILE / 4), k = i % (TILE / 4);

            ((quad *)dt)[row * (DIM / 4) + d / 4 + k] =
                ((const quad *)g)[row * ((TILE + SKEW) / 4) + k];
        }
        __syncwarp();
    }
}

bool interact_tf32_fits(const struct interact *it, const float *t, const float *dt)
{
    const uint32_t dim = it->dim;

    return (dim == 16 || dim == 32 || dim == 64 || dim == 128) && it->n_vectors <= 32 &&
           dev_by_fours(t, dim) && dev_by_fours(dt, dim);
}

static struct cuda_compat_shape shape_of(const struct interact *it, size_t n_floats)
{
    return { dim3(cuda_compat_ceil_div(it->n, WARPS)), dim3(CUDA_COMPAT_WARP, WARPS),
             WARPS * n_floats * sizeof(float) };
}

template <int DIM, int ROWS>
static cudaError_t launch_forward(cudaStream_t stream, const struct interact *it,
                                  const float *t, float *r)
{
    return cuda_compat_launch(forward<DIM, ROWS>, shape_of(it, warp_layout<DIM, ROWS>::FORWARD),
                              stream, *it, t, r);
}

template <int DIM, int ROWS>
static cudaError_t launch_backward(cudaStream_t stream, const struct interact *it,
                                   const float *t, const float *dr, float *dt)
{
    return cuda_compat_launch(backward<DIM, ROWS>,
                              shape_of(it, warp_layout<DIM, ROWS>::BACKWARD), stream, *it, t,
                              dr, dt);
}

cudaError_t interact_tf32_forward(cudaStream_t stream, const struct interact *it,
                                  const float *t, float *r)
{
    const bool few = it->n_vectors <= 16;

    switch (it->dim) {
    case 16:
        return (few ? launch_forward<16, 16> : launch_forward<16, 32>)(stream, it, t, r);
    case 32:
        return (few ? launch_forward<32, 16> : launch_forward<32, 32>)(stream, it, t, r);
    case 64:
        return (few ? launch_forward<64, 16> : launch_forward<64, 32>)(stream, it, t, r);
    default:
        return (few ? launch_forward<128, 16> : launch_forward<128, 32>)(stream, it, t, r);
    }
}

cudaError_t interact_tf32_backward(cudaStream_t stream, const struct interact *it,
                                   const float *t, const float *dr, float *dt)
{
    const bool few = it->n_vectors <= 16;

    switch (it->dim) {
    case 16:
        return (few ? launch_backward<16, 16> : launch_backward<16, 32>)(stream, it, t, dr, dt);
    case 32:
        return (few ? launch_backward<32, 16> : launch_backward<32, 32>)(stream, it, t, dr, dt);
    case 64:
        return (few ? launch_backward<64, 16> : launch_backward<64, 32>)(stream, it, t, dr, dt);
    default:
        return (few ? launch_backward<128, 16> : launch_backward<128, 32>)(stream, it, t, dr,
                                                                           dt);
    }
}
