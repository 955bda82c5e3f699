/*
 * The transpose of a batch's bags (worker/compute/bag_transpose.h) from what dedup left: the bag of each position, and
 * the spans of each row, which are numbered by sums over tiles of rows.
 */
#include "worker/cuda/kernels.h"
#include "worker/cuda/scan.h"

enum { ROWS = 8 }; /* of a thread */

#define TILE (ROWS * (uint32_t)CUDA_COMPAT_THREADS)

/* Where a copy in has failed, numbers of rows and their starts may be of two batches: what is written stays within the
 * arrays all the same. */
static __forceinline__ __device__ uint32_t n_spans(const struct bag_transposition &t,
                                                   uint32_t row)
{
    if (row >= *t.n_rows || t.order_starts[row] >= t.order_starts[row + 1])
        return 0;
    return (t.order_starts[row + 1] - t.order_starts[row] - 1) / BAG_TRANSPOSE_SPAN + 1;
}

static __forceinline__ __device__ uint32_t within(const struct bag_transposition &t,
                                                  uint32_t span)
{
    return span < t.n_spans_max ? span : t.n_spans_max;
}

/* Of this thread's rows. */
static __forceinline__ __device__ uint32_t first_row(void)
{
    return blockIdx.x * TILE + threadIdx.x * ROWS;
}

static __forceinline__ __device__ uint32_t sum_spans(const struct bag_transposition &t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ROWS; i++)
        n += n_spans(t, first_row() + i);
    return n;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    count_spans(struct bag_transposition t, uint32_t *tiles)
{
    uint32_t *sums = cuda_compat_shared<uint32_t>();
    const uint32_t n = sum_spans(t), before = scan_block(n, sums);

    if (threadIdx.x == CUDA_COMPAT_THREADS - 1)
        tiles[blockIdx.x] = before + n;
}

/* By one warp. */
static __global__ void __launch_bounds__(CUDA_COMPAT_WARP)
    number_tiles(struct bag_transposition t, uint32_t n_tiles, uint32_t *tiles)
{
    const uint32_t n = within(t, scan_row(n_tiles, tiles)), n_rows = *t.n_rows;

    if (threadIdx.x)
        return;
    t.to.counts[0] = n_rows;
    t.to.counts[1] = n;
    t.to.first[n_rows] = n;
    t.to.spans[n] = t.order_starts[n_rows];
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    write_spans(struct bag_transposition t, const uint32_t *tiles)
{
    uint32_t *sums = cuda_compat_shared<uint32_t>(),
             span = tiles[blockIdx.x] + scan_block(sum_spans(t), sums);

    for (uint32_t row = first_row(); row < first_row() + ROWS && row < *t.n_rows; row++) {
        t.to.first[row] = within(t, span);
        for (uint32_t i = t.order_starts[row]; i < t.order_starts[row + 1];
             i += BAG_TRANSPOSE_SPAN)
            t.to.spans[within(t, span++)] = i;
    }
}

/* The last bag that begins at the position or before it: those behind it that are empty begin later. */
static __forceinline__ __device__ uint32_t find_bag(const struct bag_transposition &t,
                                                    uint32_t position)
{
    uint32_t low = 0, high = t.n_bags;

    if (position < t.n_bags && t.starts[position] == position &&
        t.starts[position + 1] == position + 1)
        return position; /* as with columns of one value each */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        if (t.starts[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    write_bags(struct bag_transposition t)
{
    const size_t i = cuda_compat_index();

    if (i < t.order_starts[*t.n_rows])
        t.to.bags[i] = find_bag(t, t.order[i]);
}

static uint32_t n_tiles_of(const struct bag_transposition *t)
{
    return cuda_compat_ceil_div(t->n_rows_max, TILE);
}

size_t kernels_transpose_bags_bytes(const struct bag_transposition *t)
{
    return n_tiles_of(t) * sizeof(uint32_t);
}

cudaError_t kernels_transpose_bags(cudaStream_t stream, const struct bag_transposition *t,
                                   void *scratch)
{
    const uint32_t n_tiles = n_tiles_of(t);
    const struct cuda_compat_shape by_tile = { dim3(n_tiles), dim3(CUDA_COMPAT_THREADS),
                                               SCAN_WARPS * sizeof(uint32_t) };
    const struct cuda_compat_shape one_warp = { dim3(1), dim3(CUDA_COMPAT_WARP), 0 };
    uint32_t *tiles = (uint32_t *)scratch;
    cudaError_t error = cuda_compat_launch(count_spans, by_tile, stream, *t, tiles);

    if (!error)
        error = cuda_compat_launch(number_tiles, one_warp, stream, *t, n_tiles, tiles);
    if (!error)
        error = cuda_compat_launch(write_spans, by_tile, stream, *t, (const uint32_t *)tiles);
    return error ? error
                 : cuda_compat_launch(write_bags, cuda_compat_flat(t->n_keys_max), stream, *t);
}
