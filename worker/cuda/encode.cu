/*
 * Rows encoded for the wire, byte for byte as proto/codec_*.c. A warp takes a row, lane l its floats l, l + 32 ...; of
 * topk, which walks a row many times, a block does.
 */
#include <math.h>

#include "proto/codec_half.h"
#include "proto/codec_scalar.h"
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

static __forceinline__ __device__ void put_u16(uint8_t *at, uint32_t value)
{
    if ((uintptr_t)at % 2 == 0) {
        *(uint16_t *)at = (uint16_t)value;
        return;
    }
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static __forceinline__ __device__ void put_f32(uint8_t *at, float value)
{
    const uint32_t bits = codec_bytes_of_float(value);

    if ((uintptr_t)at % 4 == 0) {
        *(uint32_t *)at = bits;
        return;
    }
    put_u16(at, bits);
    put_u16(at + 2, bits >> 16);
}

/* One row: the values to send, and their residuals. */
struct encode_row {
    const float *values; /* NULL: `instead`, all over */
    float instead;
    float *residual; /* NULL: nothing is added or kept */

    /* A NaN stays as it is: which one an addition makes is the device's choice. */
    __forceinline__ __device__ float want(uint32_t i) const
    {
        const float value = values ? values[i] : instead;

        return residual && value == value ? value + residual[i] : value;
    }

    __forceinline__ __device__ uint32_t magnitude(uint32_t i) const
    {
        return codec_bytes_of_float(want(i)) & 0x7fffffffu;
    }

    /* Of n floats, those that this thread takes: `first`, and so many further on. */
    __forceinline__ __device__ bool is_finite(uint32_t first, uint32_t n, uint32_t by) const
    {
        bool finite = true;

        for (uint32_t i = first; values && i < n; i += by)
            finite = finite && values[i] - values[i] == 0;
        return finite;
    }

    /* A row that is not finite is sent as NaN in all floats; the residuals stay. */
    __forceinline__ __device__ void poison(void)
    {
        values = nullptr;
        instead = codec_bytes_to_float(0x7fc00000u);
        residual = nullptr;
    }
};

static __forceinline__ __device__ struct encode_row row_at(const struct device_encode &e,
                                                           size_t r)
{
    const uint32_t from = e.from ? e.from[r] : (uint32_t)r,
                   at = e.residual_at ? e.residual_at[r] : (uint32_t)r;

    return { from == DEVICE_NONE ? nullptr : e.rows + (size_t)from * e.dim, 0,
             !e.residual || at == DEVICE_NONE ? nullptr : e.residual + (size_t)at * e.dim };
}

/* ---- fp32, bf16, fp16: element by element */

template <int CODEC>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) floats(struct device_encode e)
{
    const size_t r = cuda_compat_row();
    const uint32_t i = cuda_compat_column();
    uint32_t bits;
    struct encode_row row;

    if (r >= *e.n || i >= e.dim)
        return;
    row = row_at(e, r);
    bits = codec_bytes_of_float(row.want(i));
    if (row.residual)
        row.residual[i] = 0;
    if (CODEC == CODEC_FP32)
        put_f32(e.bytes + 4 * (r * e.dim + i), codec_bytes_to_float(bits));
    else
        put_u16(e.bytes + 2 * (r * e.dim + i),
                CODEC == CODEC_BF16 ? codec_half_to_bf16(bits) : codec_half_to_fp16(bits));
}

template <int CODEC>
static cudaError_t launch_floats(cudaStream_t stream, const struct device_encode *e)
{
    return cuda_compat_launch(floats<CODEC>, cuda_compat_grid(e->n_max, e->dim), stream, *e);
}

/* ---- int8: scale, then q[dim] */

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) int8(struct device_encode e)
{
    const size_t r = cuda_compat_row();
    uint8_t *bytes = e.bytes + r * (4 + (size_t)e.dim);
    uint32_t max = 0;
    struct encode_row row;
    float scale;

    if (r >= *e.n)
        return;
    row = row_at(e, r);
    for (uint32_t i = threadIdx.x; i < e.dim; i += CUDA_COMPAT_WARP)
        max = row.magnitude(i) > max ? row.magnitude(i) : max;
    for (int by = CUDA_COMPAT_WARP / 2; by; by /= 2) {
        const uint32_t other = __shfl_xor_sync(CUDA_COMPAT_ALL_LANES, max, by);

        max = other > max ? other : max;
    }
    scale = codec_scalar_int8_scale(max);
    if (threadIdx.x == 0)
        put_f32(bytes, scale);
    for (uint32_t i = threadIdx.x; i < e.dim; i += CUDA_COMPAT_WARP) {
        bytes[4 + i] = scale == 0 ? 0 : codec_scalar_int8_q(row.want(i), scale);
        if (row.residual)
            row.residual[i] = 0;
    }
}

/* ---- onebit: scales of blocks of 256, then signs */

static constexpr uint32_t LANES = CODEC_SCALAR_ONEBIT_LANES, BLOCK = CODEC_SCALAR_ONEBIT_BLOCK;

/* Half a warp takes a block: a lane is one of the codec's sums, and they are folded as the codec does it. */
static __forceinline__ __device__ float onebit_scale(const struct encode_row &row, uint32_t at,
                                                     uint32_t n)
{
    const uint32_t lane = threadIdx.x % LANES;
    double sum = 0;

    for (uint32_t i = lane; i < n; i += LANES)
        sum += (double)fabsf(row.want(at + i));
    for (uint32_t width = LANES / 2; width; width /= 2)
        sum += __shfl_down_sync(CUDA_COMPAT_ALL_LANES, sum, width, LANES);
    sum = __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, (int)(threadIdx.x - lane));
    return codec_scalar_onebit_scale(sum, n);
}

/* Signs and what is lost of 16 floats from `at`, of which there are n (0 too). */
static __forceinline__ __device__ void onebit_signs(const struct encode_row &row, uint32_t at,
                                                    uint32_t n, float scale, uint8_t *signs)
{
    const uint32_t lane = threadIdx.x % LANES;
    const float want = lane < n ? row.want(at + lane) : -1;
    const uint32_t both = __ballot_sync(CUDA_COMPAT_ALL_LANES, want >= 0);
    const uint32_t mine = both >> (threadIdx.x - lane) & 0xffffu;

    if (lane < n && row.residual)
        row.residual[at + lane] =
            codec_scalar_residual(want, codec_scalar_onebit_got(scale, want >= 0));
    if (lane < (n + 7) / 8)
        signs[at / 8 + lane] = (uint8_t)(mine >> (8 * lane));
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) onebit(struct device_encode e)
{
    const size_t r = cuda_compat_row();
    const uint32_t n_blocks = cuda_compat_ceil_div(e.dim, BLOCK);
    uint8_t *bytes = e.bytes + r * (4 * (size_t)n_blocks + cuda_compat_ceil_div(e.dim, 8));
    struct encode_row row;

    if (r >= *e.n)
        return;
    row = row_at(e, r);
    if (__ballot_sync(CUDA_COMPAT_ALL_LANES,
                      !row.is_finite(threadIdx.x, e.dim, CUDA_COMPAT_WARP)))
        row.poison();
    /* All lanes go round as often, so that they meet; a half beyond the row has n = 0. */
    for (uint32_t b = threadIdx.x / LANES; b - threadIdx.x / LANES < n_blocks; b += 2) {
        const uint32_t at = b * BLOCK, left = at < e.dim ? e.dim - at : 0,
                       n = left < BLOCK ? left : BLOCK;
        const float scale = onebit_scale(row, at, n);

        if (n && threadIdx.x % LANES == 0)
            put_f32(bytes + 4 * (size_t)b, scale);
        for (uint32_t i = 0; i < BLOCK; i += LANES) {
            const uint32_t here = i < n ? n - i : 0;

            onebit_signs(row, at + i, here < LANES ? here : LANES, scale,
                         bytes + 4 * (size_t)n_blocks);
        }
    }
}

/* ---- topk: index u16[k] ascending, value f32[k]
 *
 * The k-th largest magnitude is found eight bits at a time, from the top: how many floats there are of each next eight
 * bits, among those that agree with what is known. (Counts: any order of additions gives the same.) Then the row is
 * written in order; of equal magnitudes the first ones go. */

enum { DIGITS = 256, WARPS_MAX = CUDA_COMPAT_THREADS / CUDA_COMPAT_WARP };

struct workspace {
    uint32_t n_of[DIGITS];      /* floats with this digit, among those still looked at */
    uint32_t n_kept[WARPS_MAX]; /* of the floats at hand, by each warp */
    uint32_t n_ties[WARPS_MAX]; /* likewise */
    uint32_t known, k;          /* upper bits of the threshold; its rank among their floats */
    uint32_t n_bad;             /* threads that have met a float that is not finite */
};

/* Which digit the k-th largest has, by the first warp: a lane adds up EACH neighbouring digits, lane 0 the largest. */
static __forceinline__ __device__ void choose_digit(struct workspace *workspace, uint32_t shift)
{
    constexpr uint32_t EACH = DIGITS / CUDA_COMPAT_WARP;
    const uint32_t lane = threadIdx.x;
    uint32_t digit = DIGITS - 1 - lane * EACH, k = workspace->k, mine = 0, up_to;

    for (uint32_t i = 0; i < EACH; i++)
        mine += workspace->n_of[digit - i];
    up_to = mine;
    for (uint32_t by = 1; by < CUDA_COMPAT_WARP; by *= 2) {
        const uint32_t other = __shfl_up_sync(CUDA_COMPAT_ALL_LANES, up_to, by);

        up_to += lane >= by ? other : 0;
    }
    __syncwarp(); /* all have read k */
    if (k > up_to || k <= up_to - mine)
        return;
    k -= up_to - mine;
    for (; workspace->n_of[digit] < k; digit--)
        k -= workspace->n_of[digit];
    workspace->k = k;
    workspace->known |= digit << shift;
}

/* The threshold into workspace->known; workspace->k: how many of those that are equal to it go. */
static __forceinline__ __device__ void find_threshold(const struct encode_row &row,
                                                      uint32_t dim, struct workspace *workspace)
{
    for (int shift = 24; shift >= 0; shift -= 8) {
        const uint32_t above = shift == 24 ? 0 : ~0u << (shift + 8);

        for (uint32_t i = threadIdx.x; i < DIGITS; i += blockDim.x)
            workspace->n_of[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) {
            const uint32_t magnitude = row.magnitude(i);

            if ((magnitude & above) == workspace->known)
                atomicAdd(&workspace->n_of[magnitude >> shift & (DIGITS - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x < CUDA_COMPAT_WARP)
            choose_digit(workspace, (uint32_t)shift);
        __syncthreads();
    }
}

/* How many of the threads before this one say so, and of the block. The next call but one may have the same
 * n_by_warp: the barrier of the one between comes after all have read it. */
struct rank {
    uint32_t before, all;
};

static __forceinline__ __device__ struct rank rank_of(bool says, uint32_t *n_by_warp)
{
    const uint32_t lane = threadIdx.x % CUDA_COMPAT_WARP, warp = threadIdx.x / CUDA_COMPAT_WARP;
    const uint32_t ballot = __ballot_sync(CUDA_COMPAT_ALL_LANES, says);
    struct rank rank = { (uint32_t)__popc(ballot & ((1u << lane) - 1)), 0 };

    if (lane == 0)
        n_by_warp[warp] = (uint32_t)__popc(ballot);
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / CUDA_COMPAT_WARP; i++) {
        rank.before += i < warp ? n_by_warp[i] : 0;
        rank.all += n_by_warp[i];
    }
    return rank;
}

/* Writes those that go, and owes the rest. */
static __forceinline__ __device__ void put_row(const struct encode_row &row, uint32_t dim,
                                               uint32_t k, uint8_t *bytes,
                                               struct workspace *workspace)
{
    const uint32_t least = workspace->known, n_ties_max = workspace->k;
    uint32_t n_ties = 0, n = 0;

    for (uint32_t first = 0; first < dim; first += blockDim.x) {
        const uint32_t i = first + threadIdx.x;
        const float want = i < dim ? row.want(i) : 0;
        const uint32_t magnitude = codec_bytes_of_float(want) & 0x7fffffffu;
        const bool tie = i < dim && magnitude == least;
        const struct rank ties = rank_of(tie, workspace->n_ties);
        const bool goes =
            i < dim && (magnitude > least || (tie && n_ties + ties.before < n_ties_max));
        const struct rank kept = rank_of(goes, workspace->n_kept);

        if (goes) {
            put_u16(bytes + 2 * (size_t)(n + kept.before), i);
            put_f32(bytes + 2 * (size_t)k + 4 * (size_t)(n + kept.before), want);
        }
        if (i < dim && row.residual)
            row.residual[i] = codec_scalar_residual(want, goes ? want : 0);
        n_ties += ties.all;
        n += kept.all;
    }
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) topk(struct device_encode e)
{
    struct workspace *workspace = cuda_compat_shared<struct workspace>();
    const size_t r = blockIdx.x;
    struct encode_row row;

    if (r >= *e.n)
        return;
    row = row_at(e, r);
    if (threadIdx.x == 0) {
        workspace->known = 0;
        workspace->k = e.k;
        workspace->n_bad = 0;
    }
    __syncthreads();
    if (!row.is_finite(threadIdx.x, e.dim, blockDim.x))
        atomicAdd(&workspace->n_bad, 1u);
    __syncthreads();
    if (workspace->n_bad)
        row.poison();
    find_threshold(row, e.dim, workspace);
    put_row(row, e.dim, e.k, e.bytes + r * 6 * e.k, workspace);
}

static cudaError_t launch_topk(cudaStream_t stream, const struct device_encode *e)
{
    const uint32_t threads = e->dim <= 32 ? 32 : e->dim <= 128 ? 128 : CUDA_COMPAT_THREADS;

    return cuda_compat_launch(topk, { dim3(e->n_max), dim3(threads), sizeof(struct workspace) },
                              stream, *e);
}

cudaError_t kernels_encode(cudaStream_t stream, const struct device_encode *e)
{
    switch (e->codec) {
    case CODEC_FP32:
        return launch_floats<CODEC_FP32>(stream, e);
    case CODEC_BF16:
        return launch_floats<CODEC_BF16>(stream, e);
    case CODEC_FP16:
        return launch_floats<CODEC_FP16>(stream, e);
    case CODEC_INT8:
        return cuda_compat_launch(int8, cuda_compat_warps(e->n_max), stream, *e);
    case CODEC_ONEBIT:
        return cuda_compat_launch(onebit, cuda_compat_warps(e->n_max), stream, *e);
    case CODEC_TOPK:
        return launch_topk(stream, e);
    case CODEC_ID_END:
        break;
    }
    return cudaErrorInvalidValue;
}
