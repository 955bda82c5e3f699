/*
 * The k largest of a row, byte for byte as proto/codec_topk.c: index u16[k] ascending, value f32[k]. A block takes a row.
 *
 * The k-th largest magnitude is found eight bits at a time, from the top: how many floats there are of each next eight
 * bits, among those that agree with what is known. (Counts: any order of additions gives the same.) Then the row is written in
 * order; of equal magnitudes the first ones go.
 */
#include "worker/cuda/encode.h"

enum { DIGITS = 256, WARPS_MAX = CUDA_COMPAT_THREADS / CUDA_COMPAT_WARP };

struct workspace {
    uint32_t n_of[DIGITS];      /* floats with this digit, among those still looked at */
    uint32_t n_kept[WARPS_MAX]; /* of the floats at hand, by each warp */
    uint32_t n_ties[WARPS_MAX]; /* likewise */
    uint32_t known, k;          /* upper bits of the threshold; its rank among their floats */
    uint32_t n_bad;             /* threads that have met a float that is not finite */
};

/* Which digit the k-th largest has, by the first thread. */
static __forceinline__ __device__ void choose_digit(struct workspace *workspace, uint32_t shift)
{
    uint32_t digit = DIGITS - 1;

    for (; workspace->n_of[digit] < workspace->k; digit--)
        workspace->k -= workspace->n_of[digit];
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
        if (threadIdx.x == 0)
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
            encode_put_u16(bytes + 2 * (size_t)(n + kept.before), i);
            encode_put_f32(bytes + 2 * (size_t)k + 4 * (size_t)(n + kept.before), want);
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
    row = encode_row_at(e, r);
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

cudaError_t kernels_encode_topk(cudaStream_t stream, const struct device_encode *e)
{
    const uint32_t threads = e->dim <= 32 ? 32 : e->dim <= 128 ? 128 : CUDA_COMPAT_THREADS;

    return cuda_compat_launch(topk, { dim3(e->n_max), dim3(threads), sizeof(struct workspace) },
                              stream, *e);
}
