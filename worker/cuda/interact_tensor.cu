/*
 * Pairwise dot products of a sample's vectors on tensor cores, in TF32 (inputs are rounded to nearest, ties away from
 * zero) or of vectors that are bf16; sums are fp32. A warp takes a sample. Its vectors are the rows of X, filled up
 * with zeros to ROWS = 16 or 32, staged in shared memory as words (words.h). A vector that is the sum of a bag of one
 * row, as most are, is that row: it is read there and never written to T.
 *
 *     forward    Z = X X^T, of which the tiles on and below the diagonal are made
 *     backward   dX = G X, G the symmetric matrix of the pairs' gradients, its diagonal doubled
 *
 * A product may take its k, and backward its columns, in any order: each lane gets words that lie side by side, and
 * leaves numbers that do. Rows of words are 8 more than a multiple of 16 apart, so that no load has bank conflicts.
 */
#include "worker/cuda/interact.h"

#include "worker/cuda/kernels.h"
#include "worker/cuda/words.h"

enum {
    WARPS = 2, /* of a block: little shared memory each, so that many blocks fit */
    TILE = 16,
    DEPTH = 8 /* words of k, and columns, of a product */
};

typedef struct words<4> quad;

/* BLOCKS are those that a multiprocessor takes at least: shared memory leaves room for no more where rows are long, and
 * then a thread may have the registers for many loads. */
template <typename Kind, int DIM, int ROWS> struct warp_layout {
    enum {
        PER_WORD = Kind::PER_WORD,
        WORDS = DIM / PER_WORD, /* of a vector */
        QUADS = WORDS / 4,
        X_LD = WORDS % 16 ? WORDS : WORDS + 8,
        /* Backward, a word holds as many vectors' numbers of a column, not numbers of a vector. */
        BACK_ROWS = ROWS / PER_WORD,
        BACK_LD = DIM + 8,
        PAIRS = ROWS * (ROWS + 1) / 2,
        R = (DIM + PAIRS + 8) / PER_WORD / 8 * 8 + 8, /* words of a row of R */
        SLOPES = PAIRS / PER_WORD / 8 * 8 + 8,
        X = ROWS * X_LD,
        FORWARD = X > R ? X : R,
        BACKWARD = BACK_ROWS * BACK_LD + SLOPES,
        BLOCKS = DIM >= 64   ? 8
                 : DIM >= 32 ? 10
                             : 16
    };
};

/* Where a vector is: a row of `rows`, or with IN_T a vector of the sample's T, or NOWHERE: it is zeros. */
#define IN_T 0x80000000u
#define NOWHERE UINT32_MAX

/* Of the lane's vector. */
template <typename Number>
static __forceinline__ __device__ uint32_t place_of(const struct interact &it,
                                                    const struct interact_sources<Number> &from,
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
template <int DIM, typename Number>
static __forceinline__ __device__ const Number *
vector_at(const struct interact_sources<Number> &from, const Number *t, uint32_t place)
{
    return (place & IN_T ? t : from.rows) + (size_t)(place & ~IN_T) * DIM;
}

/* Sums of the sample's bags of several rows into T, in the order of bag_sum. A few lanes take a bag. */
template <typename Kind, int DIM, typename Number>
static __forceinline__ __device__ void sum_bags(const struct interact &it,
                                                const struct interact_sources<Number> &from,
                                                size_t s, Number *t)
{
    constexpr uint32_t EACH = 16 / sizeof(Number), LANES = DIM / EACH;
    const uint32_t n_own = it.n_vectors - from.n_fields, d = threadIdx.x % LANES * EACH;

    for (uint32_t f = threadIdx.x / LANES; f < from.n_fields; f += CUDA_COMPAT_WARP / LANES) {
        const size_t bag = s * from.n_fields + f;
        const uint32_t first = from.starts[bag], end = from.starts[bag + 1];
        float sum[EACH] = {}, row[EACH];

        if (end - first < 2)
            continue;
        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = first; k < end; k++) {
            Kind::load(from.rows + (size_t)from.row_of[k] * DIM + d, row);
            for (uint32_t i = 0; i < EACH; i++)
                sum[i] += row[i];
        }
        Kind::store(t + (size_t)(n_own + f) * DIM + d, sum);
    }
    __syncwarp();
}

static __forceinline__ __device__ uint32_t of_lane(uint32_t mine, uint32_t lane)
{
    return __shfl_sync(CUDA_COMPAT_ALL_LANES, mine, (int)lane);
}

/* Piece i of X: of the vector at the lane's place. */
template <typename Kind, int DIM, typename Number>
static __forceinline__ __device__ quad piece_of(const struct interact_sources<Number> &from,
                                                const Number *t, uint32_t mine, uint32_t row,
                                                uint32_t i)
{
    const uint32_t place = of_lane(mine, row);
    quad v = {};

    if (place != NOWHERE)
        v = ((const quad *)vector_at<DIM>(from, t, place))[i];
    for (uint32_t &word : v.at)
        word = Kind::round(word);
    return v;
}

/* X, vector by vector. So many loads of a lane are under way together that a few warps keep the memory busy. (A row's
 * -0 stays, where the sum of its bag is 0: no product of pairs tells them apart.) */
template <typename Kind, int DIM, int ROWS, typename Number>
static __forceinline__ __device__ void stage(const struct interact_sources<Number> &from,
                                             const Number *t, uint32_t mine, uint32_t *x)
{
    typedef warp_layout<Kind, DIM, ROWS> layout;
    constexpr uint32_t QUADS = layout::QUADS, LOADS = ROWS * QUADS / CUDA_COMPAT_WARP,
                       TOGETHER = LOADS < 16 ? LOADS : 16;
    quad v[TOGETHER];

    for (uint32_t first = 0; first < LOADS; first += TOGETHER) {
        CUDA_COMPAT_UNROLL_16
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const uint32_t i = (first + k) * CUDA_COMPAT_WARP + threadIdx.x;

            v[k] = piece_of<Kind, DIM>(from, t, mine, i / QUADS, i % QUADS);
        }
        CUDA_COMPAT_UNROLL_16
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const uint32_t i = (first + k) * CUDA_COMPAT_WARP + threadIdx.x;

            *(quad *)(x + i / QUADS * layout::X_LD + i % QUADS * 4) = v[k];
        }
    }
    __syncwarp();
}

/* X with the numbers of two vectors, the even one in front, in a word. */
template <typename Kind, int DIM, int ROWS, typename Number>
static __forceinline__ __device__ void stage_pairs(const struct interact_sources<Number> &from,
                                                   const Number *t, uint32_t mine, uint32_t *x)
{
    typedef warp_layout<Kind, DIM, ROWS> layout;
    constexpr uint32_t QUADS = layout::QUADS, ALL = ROWS / 2 * QUADS, WARP = CUDA_COMPAT_WARP,
                       LANES_USED = ALL < WARP ? ALL : WARP, LOADS = ALL / LANES_USED;
    quad even[LOADS], odd[LOADS];

    CUDA_COMPAT_UNROLL_8
    for (uint32_t k = 0; k < LOADS; k++) {
        const uint32_t i = (k * LANES_USED + threadIdx.x) % ALL;

        even[k] = piece_of<Kind, DIM>(from, t, mine, i / QUADS * 2, i % QUADS);
        odd[k] = piece_of<Kind, DIM>(from, t, mine, i / QUADS * 2 + 1, i % QUADS);
    }
    CUDA_COMPAT_UNROLL_8
    for (uint32_t k = 0; k < LOADS; k++) {
        const uint32_t i = k * LANES_USED + threadIdx.x;
        struct words<8> both;

        for (uint32_t w = 0; w < 4; w++) {
            both.at[2 * w] = (even[k].at[w] & 0xffffu) | odd[k].at[w] << 16;
            both.at[2 * w + 1] = even[k].at[w] >> 16 | (odd[k].at[w] & 0xffff0000u);
        }
        if (threadIdx.x >= LANES_USED)
            continue;
        for (uint32_t w = 0; w < 8; w += 4)
            *(quad *)(x + i / QUADS * layout::BACK_LD + i % QUADS * 8 +
                      w) = { both.at[w], both.at[w + 1], both.at[w + 2], both.at[w + 3] };
    }
    __syncwarp();
}

/* R's direct part: the first vector, as it is. The sum of a bag is never -0. Each lane has a few numbers. */
template <int DIM, typename Number> struct first_vector {
    enum { EACH = DIM < CUDA_COMPAT_WARP ? 1 : DIM / CUDA_COMPAT_WARP };
    Number at[EACH];
};

template <typename Kind, int DIM, typename Number>
static __forceinline__ __device__ struct first_vector<DIM, Number>
load_first(const struct interact &it, const struct interact_sources<Number> &from,
           const Number *t, uint32_t place) {
    const bool is_bag = it.n_vectors == from.n_fields;
    struct first_vector<DIM, Number> v = {
    };

    if (threadIdx.x >= it.direct || place == NOWHERE)
        return v;
    for (uint32_t k = 0; k < v.EACH; k++)
        v.at[k] = vector_at<DIM>(from, t, place)[k * CUDA_COMPAT_WARP + threadIdx.x];
    for (uint32_t k = 0; k < v.EACH && is_bag; k++)
        v.at[k] = Kind::of_float(0.0f + Kind::to_float(v.at[k]));
    return v;
}

/* The tiles of Z on and below the diagonal. */
template <typename Kind, int DIM, int ROWS>
static __forceinline__ __device__ void products(const uint32_t *x,
                                                float (&z)[ROWS / TILE][ROWS / DEPTH][4])
{
    typedef warp_layout<Kind, DIM, ROWS> layout;
    enum { TILES = ROWS / TILE };
    const uint32_t g = threadIdx.x / 4, q = threadIdx.x % 4;

    for (int i = 0; i < TILES; i++)
        for (int j = 0; j < ROWS / DEPTH; j++)
            for (float &sum : z[i][j])
                sum = 0;
    CUDA_COMPAT_UNROLL_4
    for (uint32_t k = 0; k < layout::WORDS; k += DEPTH) {
        uint32_t a[TILES][4];

        for (int i = 0; i < TILES; i++)
            for (int h = 0; h < 2; h++) {
                const uint32_t row = (uint32_t)(i * TILE + h * 8) + g;
                const struct words<2> v =
                    *(const struct words<2> *)(x + row * layout::X_LD + k + 2 * q);

                a[i][h] = v.at[0];
                a[i][h + 2] = v.at[1];
            }
        for (int i = 0; i < TILES; i++)
            for (int j = 0; j < 2 * (i + 1); j++)
                Kind::multiply(z[i][j], a[i], a[j / 2][j % 2], a[j / 2][j % 2 + 2]);
    }
}

/* A row of R from the lanes' numbers, in shared memory: it leaves in one piece. */
template <typename Kind, int DIM, int ROWS, typename Number>
static __forceinline__ __device__ void
put_pairs(const struct interact &it, const struct first_vector<DIM, Number> &first,
          const float (&z)[ROWS / TILE][ROWS / DEPTH][4], Number *row)
{
    const uint32_t g = threadIdx.x / 4, q = threadIdx.x % 4;

    for (uint32_t k = 0; k < first.EACH; k++)
        if (threadIdx.x < it.direct)
            row[k * CUDA_COMPAT_WARP + threadIdx.x] = first.at[k];
    for (uint32_t tile = 0; tile < ROWS / TILE; tile++)
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t i = tile * TILE + h * 8 + g;
            Number *to = row + it.direct + interact_row(i, it.self);

            for (uint32_t k = 0; k < 4 * (tile + 1); k++) {
                const uint32_t j = k / 2 * DEPTH + 2 * q + k % 2;

                if (i < it.n_vectors && j < i + it.self)
                    to[j] = Kind::of_float(z[tile][k / 2][2 * h + k % 2]);
            }
        }
    __syncwarp();
}

/* As it is; gaps in R stay as they are. */
static __forceinline__ __device__ void put_row(uint32_t width, const float *row, float *r)
{
    for (uint32_t k = threadIdx.x; k < width; k += CUDA_COMPAT_WARP)
        r[k] = row[k];
}

/* By eights, zeros behind it. */
static __forceinline__ __device__ void put_row(uint32_t width, bf16 *row, bf16 *r)
{
    const uint32_t end = (width + 7) / 8 * 8;

    if (width + threadIdx.x < end)
        row[width + threadIdx.x] = 0;
    __syncwarp();
    for (uint32_t k = threadIdx.x; k < end / 8; k += CUDA_COMPAT_WARP)
        ((quad *)r)[k] = ((const quad *)row)[k];
}

template <typename Kind, int DIM, int ROWS>
static __global__ void __launch_bounds__(WARPS *CUDA_COMPAT_WARP,
                                         warp_layout<Kind, DIM, ROWS>::BLOCKS)
    forward(struct interact it, struct interact_sources<typename Kind::number> from,
            typename Kind::number *t, typename Kind::number *r)
{
    typedef typename Kind::number number;
    const size_t s = cuda_compat_row();
    const uint32_t lane = threadIdx.x, n_own = it.n_vectors - from.n_fields;
    uint32_t *x =
        cuda_compat_shared<uint32_t>() + threadIdx.y * warp_layout<Kind, DIM, ROWS>::FORWARD;
    float z[ROWS / TILE][ROWS / DEPTH][4];
    struct first_vector<DIM, number> first;
    uint32_t mine;

    if (s >= it.n)
        return;
    t += s * it.n_vectors * DIM;
    mine = place_of(it, from, s);
    if (__ballot_sync(CUDA_COMPAT_ALL_LANES, lane >= n_own && mine == (IN_T | lane)))
        sum_bags<Kind, DIM>(it, from, s, t);
    first = load_first<Kind, DIM, number>(it, from, t, of_lane(mine, 0));
    stage<Kind, DIM, ROWS, number>(from, t, mine, x);
    products<Kind, DIM, ROWS>(x, z);
    __syncwarp();
    put_pairs<Kind, DIM, ROWS>(it, first, z, (number *)x);
    put_row(it.direct + interact_row(it.n_vectors, it.self), (number *)x,
            r + s * interact_ldr(it));
}

/* The pairs' gradients as they stand, in words: loaded first, stored when all else is under way. */
template <typename Kind, int ROWS> struct slope_words {
    enum {
        N = (ROWS * (ROWS + 1) / 2 / Kind::PER_WORD + CUDA_COMPAT_WARP - 1) / CUDA_COMPAT_WARP
    };
    uint32_t at[N];
};

template <typename Kind, int ROWS>
static __forceinline__ __device__ struct slope_words<Kind, ROWS>
load_slopes(const struct interact &it, const typename Kind::number *dz) {
    const uint32_t n_words =
        (interact_row(it.n_vectors, it.self) + Kind::PER_WORD - 1) / Kind::PER_WORD;
    struct slope_words<Kind, ROWS> slopes;

    CUDA_COMPAT_UNROLL_ALL
    for (uint32_t k = 0; k < slopes.N; k++) {
        const uint32_t i = k * CUDA_COMPAT_WARP + threadIdx.x;

        slopes.at[k] = i < n_words ? ((const uint32_t *)dz)[i] : 0;
    }
    return slopes;
}

template <typename Kind, int ROWS>
static __forceinline__ __device__ void put_slopes(const struct slope_words<Kind, ROWS> &slopes,
                                                  uint32_t n_words, uint32_t *to)
{
    CUDA_COMPAT_UNROLL_ALL
    for (uint32_t k = 0; k < slopes.N; k++)
        if (k * CUDA_COMPAT_WARP + threadIdx.x < n_words)
            to[k * CUDA_COMPAT_WARP + threadIdx.x] = Kind::round(slopes.at[k]);
    __syncwarp();
}

/* Of vectors i and j; dz in shared memory. */
template <typename Kind>
static __forceinline__ __device__ float
slope_of(const struct interact &it, const typename Kind::number *dz, uint32_t i, uint32_t j)
{
    const uint32_t high = i > j ? i : j, low = i > j ? j : i;
    float slope = 0;

    if (high < it.n_vectors && low < high + it.self)
        slope = Kind::to_float(dz[interact_row(high, it.self) + low]);
    return i == j ? 2 * slope : slope;
}

/* G as the left operand of products. */
template <typename Kind, int ROWS>
static __forceinline__ __device__ void
gather_slopes(const struct interact &it, const typename Kind::number *dz,
              uint32_t (&a)[ROWS / TILE][ROWS / Kind::PER_WORD / DEPTH][4])
{
    const uint32_t g = threadIdx.x / 4, q = threadIdx.x % 4;

    for (uint32_t tile = 0; tile < ROWS / TILE; tile++)
        for (uint32_t k = 0; k < ROWS / Kind::PER_WORD / DEPTH; k++)
            for (uint32_t e = 0; e < 4; e++) {
                const uint32_t i = tile * TILE + g + e % 2 * 8,
                               j = (k * DEPTH + q + e / 2 * 4) * Kind::PER_WORD;

                a[tile][k][e] =
                    Kind::word(slope_of<Kind>(it, dz, i, j), slope_of<Kind>(it, dz, i, j + 1));
            }
}

/* Where the gradient of the first vector goes instead of dt: R's direct part is added, and it passes the mask. d NULL:
 * nowhere. */
template <typename Number> struct first_slope {
    const Number *dr, *y;
    uint32_t ldy;
    float scale;
    Number *d;
};

template <typename Kind, int DIM, int N>
static __forceinline__ __device__ void
put_first(const struct first_slope<typename Kind::number> &first, size_t ldr, size_t s,
          uint32_t o, float (&v)[N])
{
    float more[N];

    Kind::load(first.dr + s * ldr + o, more);
    for (uint32_t k = 0; k < N; k++)
        v[k] = more[k] + v[k];
    if (first.y) {
        Kind::load(first.y + s * first.ldy + o, more);
        for (uint32_t k = 0; k < N; k++)
            v[k] = more[k] > 0.0f ? v[k] * first.scale : 0.0f;
    }
    Kind::store(first.d + s * DIM + o, v);
}

/* TILES columns of products side by side: column 2 q + e of tile t is number TILES (2 q + e) + t of 8 TILES. */
template <typename Kind, int DIM, int ROWS, int TILES>
static __forceinline__ __device__ void
multiply_slopes(const uint32_t (&a)[ROWS / TILE][ROWS / Kind::PER_WORD / DEPTH][4],
                const uint32_t *x, uint32_t d, float (&sum)[ROWS / TILE][TILES][4])
{
    typedef warp_layout<Kind, DIM, ROWS> layout;
    const uint32_t g = threadIdx.x / 4, q = threadIdx.x % 4;

    for (auto &tile : sum)
        for (auto &column : tile)
            for (float &v : column)
                v = 0;
    for (uint32_t k = 0; k < layout::BACK_ROWS / DEPTH; k++) {
        const uint32_t *row = x + (k * DEPTH + q) * layout::BACK_LD + d + TILES * g;
        const struct words<TILES> b0 = *(const struct words<TILES> *)row,
                                  b1 =
                                      *(const struct words<TILES> *)(row + 4 * layout::BACK_LD);

        for (uint32_t i = 0; i < ROWS / TILE; i++)
            for (uint32_t t = 0; t < TILES; t++)
                Kind::multiply(sum[i][t], a[i][k], b0.at[t], b1.at[t]);
    }
}

template <typename Kind, int DIM, int ROWS>
static __forceinline__ __device__ void
multiply_and_put(const struct interact &it, size_t s,
                 const uint32_t (&a)[ROWS / TILE][ROWS / Kind::PER_WORD / DEPTH][4],
                 const uint32_t *x, const struct first_slope<typename Kind::number> &first,
                 typename Kind::number *dt)
{
    constexpr uint32_t TILES =
        2 * Kind::PER_WORD < DIM / DEPTH ? 2 * Kind::PER_WORD : DIM / DEPTH;
    const uint32_t g = threadIdx.x / 4, q = threadIdx.x % 4;

    for (uint32_t d = 0; d < DIM; d += DEPTH * TILES) {
        float sum[ROWS / TILE][TILES][4];

        multiply_slopes<Kind, DIM, ROWS, TILES>(a, x, d, sum);
        for (uint32_t half = 0; half < ROWS / DEPTH; half++) {
            const uint32_t i = half * DEPTH + g, o = d + TILES * 2 * q;
            float v[2 * TILES];

            for (uint32_t k = 0; k < 2 * TILES; k++)
                v[k] = sum[half / 2][k % TILES][half % 2 * 2 + k / TILES];
            if (i == 0 && first.d)
                put_first<Kind, DIM>(first, interact_ldr(it), s, o, v);
            else if (i < it.n_vectors)
                Kind::store_once(dt + (size_t)i * DIM + o, v);
        }
        __syncwarp(); /* the next round's products are whole warps' */
    }
}

template <typename Kind, int DIM, int ROWS>
static __global__ void __launch_bounds__(WARPS *CUDA_COMPAT_WARP,
                                         warp_layout<Kind, DIM, ROWS>::BLOCKS)
    backward(struct interact it, struct interact_sources<typename Kind::number> from,
             const typename Kind::number *t, const typename Kind::number *dr,
             struct first_slope<typename Kind::number> first, typename Kind::number *dt)
{
    typedef typename Kind::number number;
    typedef warp_layout<Kind, DIM, ROWS> layout;
    const size_t s = cuda_compat_row();
    const uint32_t n_words =
        (interact_row(it.n_vectors, it.self) + Kind::PER_WORD - 1) / Kind::PER_WORD;
    uint32_t *x = cuda_compat_shared<uint32_t>() + threadIdx.y * layout::BACKWARD,
             *dz = x + layout::BACK_ROWS * layout::BACK_LD;
    uint32_t a[ROWS / TILE][ROWS / Kind::PER_WORD / DEPTH][4];
    struct slope_words<Kind, ROWS> slopes;
    uint32_t mine;

    if (s >= it.n)
        return;
    t += s * it.n_vectors * DIM;
    dt += s * it.n_vectors * DIM;
    slopes = load_slopes<Kind, ROWS>(it, dr + s * interact_ldr(it) + it.direct);
    mine = place_of(it, from, s);
    if constexpr (Kind::PER_WORD == 1)
        stage<Kind, DIM, ROWS, number>(from, t, mine, x);
    else
        stage_pairs<Kind, DIM, ROWS, number>(from, t, mine, x);
    put_slopes<Kind, ROWS>(slopes, n_words, dz);
    gather_slopes<Kind, ROWS>(it, (const number *)dz, a);
    multiply_and_put<Kind, DIM, ROWS>(it, s, a, x, first, dt);
}

static bool fits(const struct interact *it)
{
    const uint32_t dim = it->dim;

    return (dim == 16 || dim == 32 || dim == 64 || dim == 128) && it->n_vectors <= 32;
}

bool interact_tf32_fits(const struct interact *it, const float *t, const float *dt)
{
    return fits(it) && dev_by_fours(t, it->dim) && dev_by_fours(dt, it->dim);
}

static struct cuda_compat_shape shape_of(const struct interact *it, size_t n_words)
{
    return { dim3(cuda_compat_ceil_div(it->n, WARPS)), dim3(CUDA_COMPAT_WARP, WARPS),
             WARPS * n_words * sizeof(uint32_t) };
}

template <typename Kind> struct forward_job {
    typedef typename Kind::number number;
    cudaStream_t stream;
    struct interact it;
    struct interact_sources<number> from;
    number *t, *r;

    template <int DIM, int ROWS> cudaError_t launch() const
    {
        return cuda_compat_launch(forward<Kind, DIM, ROWS>,
                                  shape_of(&it, warp_layout<Kind, DIM, ROWS>::FORWARD), stream,
                                  it, from, t, r);
    }
};

template <typename Kind> struct backward_job {
    typedef typename Kind::number number;
    cudaStream_t stream;
    struct interact it;
    struct interact_sources<number> from;
    const number *t, *dr;
    struct first_slope<number> first;
    number *dt;

    template <int DIM, int ROWS> cudaError_t launch() const
    {
        return cuda_compat_launch(backward<Kind, DIM, ROWS>,
                                  shape_of(&it, warp_layout<Kind, DIM, ROWS>::BACKWARD), stream,
                                  it, from, t, dr, first, dt);
    }
};

/* Of 16 rows of X, or 32. */
template <int DIM, typename Job> static cudaError_t launch_rows(const Job &job)
{
    return job.it.n_vectors <= 16 ? job.template launch<DIM, 16>()
                                  : job.template launch<DIM, 32>();
}

template <typename Job> static cudaError_t launch(const Job &job)
{
    switch (job.it.dim) {
    case 16:
        return launch_rows<16>(job);
    case 32:
        return launch_rows<32>(job);
    case 64:
        return launch_rows<64>(job);
    default:
        return launch_rows<128>(job);
    }
}

cudaError_t interact_tf32_forward(cudaStream_t stream, const struct interact *it,
                                  const struct interact_sources<float> *from, float *t,
                                  float *r)
{
    return launch(forward_job<tf32_words>{ stream, *it, *from, t, r });
}

cudaError_t interact_tf32_backward(cudaStream_t stream, const struct interact *it,
                                   const struct interact_sources<float> *from, const float *t,
                                   const float *dr, float *dt, const struct relu_mask *mask,
                                   float *dfirst)
{
    const struct relu_mask through = mask ? *mask : relu_mask{};

    return launch(backward_job<tf32_words>{
        stream, *it, *from, t, dr, { dr, through.y, through.ldy, through.scale, dfirst }, dt });
}

cudaError_t kernels_bf16_interact_forward(cudaStream_t stream, const struct bags *b,
                                          const bf16 *rows, const struct interact *it, bf16 *t,
                                          bf16 *r)
{
    const struct interact_sources<bf16> from = {
        b->n_fields, b->starts, b->row_of, rows
    };

    return launch(forward_job<bf16_words>{ stream, *it, from, t, r });
}

cudaError_t kernels_bf16_interact_backward(cudaStream_t stream, const struct bags *b,
                                           const bf16 *rows, const struct interact *it,
                                           const bf16 *t, const bf16 *dr, bf16 *dt,
                                           const struct bf16_mask *mask, bf16 *dfirst)
{
    const struct interact_sources<bf16> from = {
        b->n_fields, b->starts, b->row_of, rows
    };
    const struct bf16_mask through = mask ? *mask : bf16_mask{};

    return launch(backward_job<bf16_words>{
        stream, *it, from, t, dr, { dr, through.y, through.ldy, through.scale, dfirst }, dt });
}
