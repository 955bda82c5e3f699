/*
 * Pairwise dot products of a sample's vectors on tensor cores, in TF32: inputs are rounded to nearest, ties away from
 * zero, sums are fp32. A warp takes a sample. Its vectors are the rows of X, filled up with zeros to ROWS = 16 or 32,
 * staged in shared memory a few floats apart, so that fragments come without bank conflicts. A vector that is the sum
 * of a bag of one row, as most are, is that row: it is read there and never written to T.
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
 * takes X's place. BLOCKS are those that a multiprocessor takes at least: shared memory leaves room for no more where
 * rows are long, and then a thread may have the registers for many loads. */
template <int DIM, int ROWS> struct warp_layout {
    enum {
        X_LD = DIM + SKEW,
        Z_LD = ROWS + SKEW,
        X = ROWS * X_LD,
        Z = ROWS * Z_LD,
        FORWARD = X > Z ? X : Z,
        BACKWARD = X + Z,
        BLOCKS = DIM >= 64   ? 8
                 : DIM >= 32 ? 12
                             : 16
    };
};

/* Where a vector is: a row of `rows`, or with IN_T a vector of the sample's T, or NOWHERE: it is zeros. */
#define IN_T 0x80000000u
#define NOWHERE UINT32_MAX

/* Of the lane's vector. */
static __forceinline__ __device__ uint32_t place_of(const struct interact &it,
                                                    const struct interact_sources &from,
                                                    size_t s)
{
    const uint32_t v = threadIdx.x, n_own = it.n_vectors - from.n_fields;
    uint32_t first, n;
    size_t bag;

    if (v >= it.n_vectors)
        return NOWHERE;
    if (v < n_own)
        return IN_T | v;
    bag = s * from.n_fields + v - n_own;
    first = from.starts[bag];
    n = from.starts[bag + 1] - first;
    return n == 1 ? from.row_of[first] : n ? IN_T | v : NOWHERE;
}

/* Not NOWHERE. */
template <int DIM>
static __forceinline__ __device__ const float *vector_at(const struct interact_sources &from,
                                                         const float *t, uint32_t place)
{
    return (place & IN_T ? t : from.rows) + (size_t)(place & ~IN_T) * DIM;
}

/* Sums of the sample's bags of several rows into T, in the order of bag_sum. A few lanes take a bag. */
template <int DIM>
static __forceinline__ __device__ void
sum_bags(const struct interact &it, const struct interact_sources &from, size_t s, float *t)
{
    constexpr uint32_t QUADS = DIM / 4;
    const uint32_t n_own = it.n_vectors - from.n_fields, d = threadIdx.x % QUADS;

    for (uint32_t f = threadIdx.x / QUADS; f < from.n_fields; f += CUDA_COMPAT_WARP / QUADS) {
        const size_t bag = s * from.n_fields + f;
        const uint32_t first = from.starts[bag], end = from.starts[bag + 1];
        quad sum = {};

        if (end - first < 2)
            continue;
        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = first; k < end; k++) {
            const quad row = ((const quad *)from.rows)[(size_t)from.row_of[k] * QUADS + d];

            for (uint32_t i = 0; i < 4; i++)
                sum.at[i] += row.at[i];
        }
        ((quad *)t)[(n_own + f) * QUADS + d] = sum;
    }
    __syncwarp();
}

static __forceinline__ __device__ uint32_t of_lane(uint32_t mine, uint32_t lane)
{
    return __shfl_sync(CUDA_COMPAT_ALL_LANES, mine, (int)lane);
}

/* X, rounded, of vectors at the lanes' places. So many loads of a lane are under way together that a few
 * warps keep the memory busy. (A row's -0 stays, where the sum of its bag is 0: no product of pairs tells them
 * apart.) */
template <int DIM, int ROWS>
static __forceinline__ __device__ void stage(const struct interact_sources &from,
                                             const float *t, uint32_t mine, float *x)
{
    constexpr uint32_t LOADS = ROWS * DIM / 4 / CUDA_COMPAT_WARP,
                       TOGETHER = LOADS < 16 ? LOADS : 16;
    quad *to = (quad *)x, v[TOGETHER];

    for (uint32_t first = 0; first < LOADS; first += TOGETHER) {
        CUDA_COMPAT_UNROLL_16
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const uint32_t i = (first + k) * CUDA_COMPAT_WARP + threadIdx.x;
            const uint32_t place = of_lane(mine, i / (DIM / 4));

            v[k] = {};
            if (place != NOWHERE)
                v[k] = ((const quad *)vector_at<DIM>(from, t, place))[i % (DIM / 4)];
        }
        CUDA_COMPAT_UNROLL_16
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

/* R's direct part: the first vector, as it is. The sum of a bag is never -0. */
template <int DIM>
static __forceinline__ __device__ void copy_first(const struct interact &it,
                                                  const struct interact_sources &from,
                                                  const float *t, uint32_t place, float *r)
{
    constexpr uint32_t EACH = DIM < CUDA_COMPAT_WARP ? 1 : DIM / CUDA_COMPAT_WARP;
    const bool is_bag = it.n_vectors == from.n_fields;
    float v[EACH] = {};

    if (threadIdx.x >= it.direct)
        return;
    for (uint32_t k = 0; k < EACH && place != NOWHERE; k++)
        v[k] = vector_at<DIM>(from, t, place)[k * CUDA_COMPAT_WARP + threadIdx.x];
    for (uint32_t k = 0; k < EACH; k++)
        r[k * CUDA_COMPAT_WARP + threadIdx.x] = is_bag ? 0.0f + v[k] : v[k];
}

template <int DIM, int ROWS>
static __global__ void __launch_bounds__(WARPS *CUDA_COMPAT_WARP,
                                         warp_layout<DIM, ROWS>::BLOCKS)
    forward(struct interact it, struct interact_sources from, float *t, float *r)
{
    const size_t s = cuda_compat_row();
    const uint32_t lane = threadIdx.x, n_own = it.n_vectors - from.n_fields;
    float *x = cuda_compat_shared<float>() + threadIdx.y * warp_layout<DIM, ROWS>::FORWARD;
    uint32_t mine;

    if (s >= it.n)
        return;
    t += s * it.n_vectors * DIM;
    r += s * interact_ldr(it);
    mine = place_of(it, from, s);
    if (__ballot_sync(CUDA_COMPAT_ALL_LANES, lane >= n_own && mine == (IN_T | lane)))
        sum_bags<DIM>(it, from, s, t);
    stage<DIM, ROWS>(from, t, mine, x);
    copy_first<DIM>(it, from, t, of_lane(mine, 0), r);
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
static __global__ void __launch_bounds__(WARPS *CUDA_COMPAT_WARP,
                                         warp_layout<DIM, ROWS>::BLOCKS)
    backward(struct interact it, struct interact_sources from, const float *t, const float *dr,
             float *dt)
{
    const size_t s = cuda_compat_row();
    uint32_t mine;
    float *x = cuda_compat_shared<float>() + threadIdx.y * warp_layout<DIM, ROWS>::BACKWARD;
    float *g = x + warp_layout<DIM, ROWS>::X;
    tile_left slopes[ROWS / TILE][ROWS / DEPTH];

    if (s >= it.n)
        return;
    t += s * it.n_vectors * DIM;
    dt += s * it.n_vectors * DIM;
    dr += s * interact_ldr(it) + it.direct;
    mine = place_of(it, from, s);
    stage_slopes<ROWS>(it, dr, g);
    stage<DIM, ROWS>(from, t, mine, x);
    for (int i = 0; i < ROWS / TILE; i++)
        for (int j = 0; j < ROWS / DEPTH; j++)
            wmma::load_matrix_sync(slopes[i][j], g + i * TILE * (ROWS + SKEW) + j * DEPTH,
                                   ROWS + SKEW);
    __syncwarp();
    for (uint32_t d = 0; d < DIM; d += TILE) {
        column_of_tiles<DIM, ROWS>(slopes, x, d, g);
        for (uint32_t i = threadIdx.x; i < it.n_vectors * (TILE / 4); i += CUDA_COMPAT_WARP) {
            const uint32_t row = i / (TILE / 4), k = i % (TILE / 4);

            dev_store_once((quad *)dt + row * (DIM / 4) + d / 4 + k,
                           ((const quad *)g)[row * ((TILE + SKEW) / 4) + k]);
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
                                  const struct interact_sources *from, float *t, float *r)
{
    return cuda_compat_launch(forward<DIM, ROWS>, shape_of(it, warp_layout<DIM, ROWS>::FORWARD),
                              stream, *it, *from, t, r);
}

template <int DIM, int ROWS>
static cudaError_t launch_backward(cudaStream_t stream, const struct interact *it,
                                   const struct interact_sources *from, const float *t,
                                   const float *dr, float *dt)
{
    return cuda_compat_launch(backward<DIM, ROWS>,
                              shape_of(it, warp_layout<DIM, ROWS>::BACKWARD), stream, *it,
                              *from, t, dr, dt);
}

/* Of 16 rows of X, or 32. */
template <int DIM>
static cudaError_t forward_of(cudaStream_t stream, const struct interact *it,
                              const struct interact_sources *from, float *t, float *r)
{
    return (it->n_vectors <= 16 ? launch_forward<DIM, 16>
                                : launch_forward<DIM, 32>)(stream, it, from, t, r);
}

template <int DIM>
static cudaError_t backward_of(cudaStream_t stream, const struct interact *it,
                               const struct interact_sources *from, const float *t,
                               const float *dr, float *dt)
{
    return (it->n_vectors <= 16 ? launch_backward<DIM, 16>
                                : launch_backward<DIM, 32>)(stream, it, from, t, dr, dt);
}

cudaError_t interact_tf32_forward(cudaStream_t stream, const struct interact *it,
                                  const struct interact_sources *from, float *t, float *r)
{
    switch (it->dim) {
    case 16:
        return forward_of<16>(stream, it, from, t, r);
    case 32:
        return forward_of<32>(stream, it, from, t, r);
    case 64:
        return forward_of<64>(stream, it, from, t, r);
    default:
        return forward_of<128>(stream, it, from, t, r);
    }
}

cudaError_t interact_tf32_backward(cudaStream_t stream, const struct interact *it,
                                   const struct interact_sources *from, const float *t,
                                   const float *dr, float *dt)
{
    switch (it->dim) {
    case 16:
        return backward_of<16>(stream, it, from, t, dr, dt);
    case 32:
        return backward_of<32>(stream, it, from, t, dr, dt);
    case 64:
        return backward_of<64>(stream, it, from, t, dr, dt);
    default:
        return backward_of<128>(stream, it, from, t, dr, dt);
    }
}
