/*
 * Duplicate keys of a batch removed (worker/data/batch.h): a stable radix sort of keys and their positions, least digit
 * first, with the group as the last digit; then heads, the first of equal keys, are numbered. So rows are in the order
 * of their keys and positions ascend within a row, as batch_dedup() leaves them, whatever the keys are.
 *
 * A block has a tile of keys, and a warp of it a run of them, 32 at a time. Lanes with the same digit find each other
 * by ballots, so a key's place follows from the counts of keys before it; nothing is added by atomics.
 *
 *     number     of each tile and digit, how many keys        counts [digit][tile]
 *     offsets    sums over the tiles before, of each digit    counts, totals [digit]
 *     scatter    keys and positions to their places
 */
#include "worker/cuda/kernels.h"
#include "worker/cuda/scan.h"

enum {
    ITEMS = 16, /* of a thread */
    WARPS = SCAN_WARPS,
    RUN = ITEMS * CUDA_COMPAT_WARP, /* of a warp */
    TILE = ITEMS * CUDA_COMPAT_THREADS,
    DIGITS = 256,
    KEY_PASSES = 8
};

/* A pass of the sort: keys and positions in and out. Positions NULL: they are 0, 1, 2 ... */
struct pass {
    uint32_t n, n_tiles, shift;
    const uint8_t
        *group_of; /* by position: the digit, instead of one of the key's; NULL: the key's */
    const uint64_t *keys;
    const uint32_t *positions;
    uint64_t *keys_out;
    uint32_t *positions_out;
    uint32_t *counts, *totals;
};

static __forceinline__ __device__ uint32_t warp_of(void)
{
    return threadIdx.x / CUDA_COMPAT_WARP;
}

static __forceinline__ __device__ uint32_t lanes_below(void)
{
    return (1u << scan_lane()) - 1;
}

/* This thread's item of its warp's run. */
static __forceinline__ __device__ uint32_t item_of(uint32_t i)
{
    return blockIdx.x * TILE + warp_of() * RUN + i * CUDA_COMPAT_WARP + scan_lane();
}

/* Whether any lane of the warp has an item there, of n. */
static __forceinline__ __device__ bool has_items(uint32_t i, uint32_t n)
{
    return item_of(i) - scan_lane() < n;
}

/* The lanes that are there and have this digit. */
static __forceinline__ __device__ uint32_t peers_of(uint32_t digit, bool is_there)
{
    uint32_t peers = __ballot_sync(CUDA_COMPAT_ALL_LANES, is_there);

    for (uint32_t bit = 1; bit < DIGITS; bit *= 2) {
        const uint32_t with = __ballot_sync(CUDA_COMPAT_ALL_LANES, (digit & bit) != 0);

        peers &= digit & bit ? with : ~with;
    }
    return peers;
}

static __forceinline__ __device__ uint32_t position_of(const struct pass &p, uint32_t item)
{
    return p.positions ? p.positions[item] : item;
}

static __forceinline__ __device__ uint32_t digit_of(const struct pass &p, uint32_t item)
{
    return p.group_of ? p.group_of[position_of(p, item)]
                      : (uint32_t)(p.keys[item] >> p.shift) % DIGITS;
}

/* Numbers the items of each digit in each warp's run: ranks [ITEMS], and in shared memory how many of each digit there
 * are, [WARPS][DIGITS]. */
static __forceinline__ __device__ uint32_t *rank_items(const struct pass &p,
                                                       uint32_t ranks[ITEMS])
{
    uint32_t *shared = cuda_compat_shared<uint32_t>(), *counts = shared + warp_of() * DIGITS;

    for (uint32_t i = threadIdx.x; i < WARPS * DIGITS; i += CUDA_COMPAT_THREADS)
        shared[i] = 0;
    __syncthreads();
    CUDA_COMPAT_UNROLL_16
    for (uint32_t i = 0; i < ITEMS; i++) {
        const bool is_there = item_of(i) < p.n;

        if (!has_items(i, p.n))
            break;
        const uint32_t digit = is_there ? digit_of(p, item_of(i)) : 0,
                       peers = peers_of(digit, is_there), before = counts[digit];

        ranks[i] = before + (uint32_t)__popc(peers & lanes_below());
        __syncwarp();
        if (is_there && !(peers & lanes_below()))
            counts[digit] = before + (uint32_t)__popc(peers);
        __syncwarp();
    }
    __syncthreads();
    return shared;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) number(struct pass p)
{
    uint32_t ranks[ITEMS], sum = 0;
    const uint32_t *counts = rank_items(p, ranks);

    for (uint32_t w = 0; w < WARPS; w++)
        sum += counts[w * DIGITS + threadIdx.x];
    p.counts[threadIdx.x * p.n_tiles + blockIdx.x] = sum;
}

/* Rows of n numbers: each becomes the sum of those before it; a warp for each row. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    offsets(uint32_t n_rows, uint32_t n, uint32_t *numbers, uint32_t *totals)
{
    const size_t row = cuda_compat_row();
    uint32_t sum;

    if (row >= n_rows)
        return;
    sum = scan_row(n, numbers + row * n);
    if (threadIdx.x == 0)
        totals[row] = sum;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) scatter(struct pass p)
{
    const uint32_t digit = threadIdx.x;
    uint32_t ranks[ITEMS], *places = rank_items(p, ranks), place;

    place = scan_block(p.totals[digit], places + WARPS * DIGITS) +
            p.counts[digit * p.n_tiles + blockIdx.x];
    for (uint32_t w = 0; w < WARPS; w++) {
        const uint32_t n = places[w * DIGITS + digit];

        places[w * DIGITS + digit] = place;
        place += n;
    }
    __syncthreads();
    CUDA_COMPAT_UNROLL_16
    for (uint32_t i = 0; i < ITEMS; i++) {
        const uint32_t item = item_of(i);

        if (item >= p.n)
            continue;
        place = places[warp_of() * DIGITS + digit_of(p, item)] + ranks[i];
        p.keys_out[place] = p.keys[item];
        p.positions_out[place] = position_of(p, item);
    }
}

/* The group of each position: that of its bag's field. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    find_groups(struct kernels_dedup_batch d, uint8_t *group_of)
{
    const size_t bag = cuda_compat_index();

    if (bag >= d.n_bags)
        return;
    for (uint32_t i = d.starts[bag]; i < d.starts[bag + 1]; i++)
        group_of[i] = d.of_field[bag % d.n_fields];
}

/* ---- heads ---- */

/* Keys and positions in their order. */
struct sorted {
    struct kernels_dedup_batch d; /* borrowed memory */
    const uint64_t *keys;
    const uint8_t *group_of; /* NULL: there is one */
    uint32_t *tile_heads;    /* [tiles]; then the heads of the tiles before */
};

static __forceinline__ __device__ bool is_head(const struct sorted &s, uint32_t item)
{
    return item < s.d.n_keys && (item == 0 || s.keys[item] != s.keys[item - 1]);
}

/* Of this warp's run. */
static __forceinline__ __device__ uint32_t n_heads(const struct sorted &s)
{
    uint32_t n = 0;

    CUDA_COMPAT_UNROLL_16
    for (uint32_t i = 0; i < ITEMS && has_items(i, s.d.n_keys); i++)
        n += (uint32_t)__popc(__ballot_sync(CUDA_COMPAT_ALL_LANES, is_head(s, item_of(i))));
    return n;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) count_heads(struct sorted s)
{
    uint32_t *heads = cuda_compat_shared<uint32_t>(), n = n_heads(s);

    if (scan_lane() == 0)
        heads[warp_of()] = n;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (uint32_t w = 1; w < WARPS; w++)
        n += heads[w];
    s.tile_heads[blockIdx.x] = n;
}

/* Groups that begin at `row`, behind the last one that had a row. */
static __forceinline__ __device__ void begin_groups(const struct sorted &s, uint32_t first,
                                                    uint32_t end, uint32_t row)
{
    for (uint32_t g = first; g < end; g++)
        s.d.counts[1 + g] = row;
}

static __forceinline__ __device__ void write_head(const struct sorted &s, uint32_t item,
                                                  uint32_t row)
{
    s.d.unique[row] = s.keys[item];
    s.d.order_starts[row] = item;
    if (s.group_of)
        begin_groups(s, item ? s.group_of[s.d.order[item - 1]] + 1u : 0,
                     s.group_of[s.d.order[item]] + 1u, row);
}

static __forceinline__ __device__ void write_end(const struct sorted &s, uint32_t n_rows)
{
    s.d.order_starts[n_rows] = s.d.n_keys;
    if (s.group_of)
        begin_groups(s, s.group_of[s.d.order[s.d.n_keys - 1]] + 1u, s.d.n_groups + 1, n_rows);
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) write_rows(struct sorted s)
{
    uint32_t *heads = cuda_compat_shared<uint32_t>(), n = n_heads(s);

    if (scan_lane() == 0)
        heads[warp_of()] = n;
    __syncthreads();
    n = s.tile_heads[blockIdx.x];
    for (uint32_t w = 0; w < warp_of(); w++)
        n += heads[w];
    CUDA_COMPAT_UNROLL_4
    for (uint32_t i = 0; i < ITEMS && has_items(i, s.d.n_keys); i++) {
        const uint32_t item = item_of(i), mine = is_head(s, item),
                       all = __ballot_sync(CUDA_COMPAT_ALL_LANES, mine != 0),
                       row = n + (uint32_t)__popc(all & lanes_below()) + mine - 1;

        n += (uint32_t)__popc(all);
        if (item >= s.d.n_keys)
            continue;
        s.d.row_of[s.d.order[item]] = row;
        if (mine)
            write_head(s, item, row);
        if (item == s.d.n_keys - 1)
            write_end(s, row + 1);
    }
}

/* ---- launches ---- */

/* The scratch, in this order. */
struct place {
    uint64_t *keys[2];
    uint32_t *positions[2], *counts, *totals;
    uint8_t *group_of;
    size_t n_bytes;
};

static struct place place_of(uint32_t n_keys, void *scratch)
{
    const size_t n = n_keys, n_counts = (size_t)cuda_compat_ceil_div(n, TILE) * DIGITS;
    struct place p = {};

    p.keys[0] = (uint64_t *)scratch;
    p.keys[1] = p.keys[0] + n;
    p.positions[0] = (uint32_t *)(p.keys[1] + n);
    p.positions[1] = p.positions[0] + n;
    p.counts = p.positions[1] + n;
    p.totals = p.counts + n_counts;
    p.group_of = (uint8_t *)(p.totals + DIGITS);
    p.n_bytes = n * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t) + 1) +
                (n_counts + DIGITS) * sizeof(uint32_t);
    return p;
}

size_t kernels_dedup_bytes(uint32_t n_keys)
{
    return place_of(n_keys, NULL).n_bytes;
}

static struct cuda_compat_shape tiles(uint32_t n_tiles, size_t n_words)
{
    return { dim3(n_tiles), dim3(CUDA_COMPAT_THREADS), n_words * sizeof(uint32_t) };
}

static cudaError_t sort_once(cudaStream_t stream, const struct pass &p)
{
    const struct cuda_compat_shape shape = tiles(p.n_tiles, WARPS * DIGITS + WARPS);
    cudaError_t error = cuda_compat_launch(number, shape, stream, p);

    if (!error)
        error = cuda_compat_launch(offsets, cuda_compat_warps(DIGITS), stream, (uint32_t)DIGITS,
                                   p.n_tiles, p.counts, p.totals);
    return error ? error : cuda_compat_launch(scatter, shape, stream, p);
}

/* By all digits of the keys, then by group. The last pass leaves the positions in d->order. */
static cudaError_t sort_all(cudaStream_t stream, const struct kernels_dedup_batch *d,
                            const struct place &at, uint32_t n_passes)
{
    struct pass p = {};
    cudaError_t error = cudaSuccess;

    p.n = d->n_keys;
    p.n_tiles = cuda_compat_ceil_div(d->n_keys, TILE);
    p.keys = d->keys;
    p.counts = at.counts;
    p.totals = at.totals;
    for (uint32_t i = 0; i < n_passes && !error; i++) {
        p.shift = 8 * i;
        p.group_of = i == KEY_PASSES ? at.group_of : NULL;
        p.keys_out = at.keys[i % 2];
        p.positions_out = i + 1 == n_passes ? d->order : at.positions[i % 2];
        error = sort_once(stream, p);
        p.keys = p.keys_out;
        p.positions = p.positions_out;
    }
    return error;
}

static cudaError_t number_rows(cudaStream_t stream, const struct sorted &s)
{
    const uint32_t n_tiles = cuda_compat_ceil_div(s.d.n_keys, TILE);
    cudaError_t error = cuda_compat_launch(count_heads, tiles(n_tiles, WARPS), stream, s);

    if (!error)
        error = cuda_compat_launch(offsets, cuda_compat_warps(1), stream, 1u, n_tiles,
                                   s.tile_heads, s.d.counts);
    return error ? error : cuda_compat_launch(write_rows, tiles(n_tiles, WARPS), stream, s);
}

cudaError_t kernels_dedup(cudaStream_t stream, const struct kernels_dedup_batch *d,
                          void *scratch)
{
    const struct place at = place_of(d->n_keys, scratch);
    const uint32_t n_passes = d->n_groups ? KEY_PASSES + 1 : KEY_PASSES;
    cudaError_t error = cudaSuccess;

    if (d->n_groups)
        error = cuda_compat_launch(find_groups, cuda_compat_flat(d->n_bags), stream, *d,
                                   at.group_of);
    if (!error)
        error = sort_all(stream, d, at, n_passes);
    return error ? error
                 : number_rows(stream, { *d, at.keys[(n_passes - 1) % 2],
                                         d->n_groups ? at.group_of : NULL, at.counts });
}
