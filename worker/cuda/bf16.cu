/* Activations that are bf16 (device_bf16.h): copies, and what follows products. A thread has EACH numbers of a row. */
#include <math.h>

#include "common/hash.h"
#include "worker/cuda/column_sums.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/words.h"

enum { EACH = 8 };

/* ---- copies ---- */

struct copies {
    struct bf16_copy at[DEVICE_BF16_COPIES_MAX];
};

/* Of few rows or of odd ones: a row of x may begin anywhere. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) round_copies(struct copies all)
{
    const bf16 *const y = all.at[blockIdx.y].y;
    const float *const x = all.at[blockIdx.y].x;
    const uint32_t n = all.at[blockIdx.y].n, width = all.at[blockIdx.y].width,
                   ldx = all.at[blockIdx.y].ldx, ldy = all.at[blockIdx.y].ldy;
    const size_t i = cuda_compat_index(), s = i / (ldy / EACH);
    const uint32_t o = (uint32_t)(i % (ldy / EACH)) * EACH;
    float v[EACH];

    if (s >= n)
        return;
    for (uint32_t k = 0; k < EACH; k++)
        v[k] = o + k < width ? x[s * ldx + o + k] : 0.0f;
    bf16_store((bf16 *)(uintptr_t)(y + s * ldy + o), v);
}

cudaError_t kernels_bf16_round(cudaStream_t stream, const struct bf16_copy *copies, uint32_t n)
{
    struct copies all = {};
    size_t most = 0;

    for (uint32_t i = 0; i < n; i++) {
        const size_t n_threads = (size_t)copies[i].n * (copies[i].ldy / EACH);

        all.at[i] = copies[i];
        most = most > n_threads ? most : n_threads;
    }
    return cuda_compat_launch(round_copies,
                              { dim3(cuda_compat_ceil_div(most, CUDA_COMPAT_THREADS), n),
                                dim3(CUDA_COMPAT_THREADS), 0 },
                              stream, all);
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    round_rows(uint32_t dim, const uint32_t *n_rows, const float *x, bf16 *y)
{
    const size_t i = cuda_compat_index() * EACH;
    float v[EACH];

    if (i >= (size_t)*n_rows * dim)
        return;
    tf32_words::load(x + i, v);
    bf16_store(y + i, v);
}

cudaError_t kernels_bf16_round_rows(cudaStream_t stream, uint32_t dim,
                                    const struct bag_transpose *transpose, const float *rows,
                                    bf16 *rounded)
{
    return cuda_compat_launch(round_rows,
                              cuda_compat_flat((size_t)transpose->n_rows_max * dim / EACH),
                              stream, dim, transpose->counts, rows, rounded);
}

/* ---- what follows a product ---- */

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    bias(uint32_t n, uint32_t width, const bf16 *b, float least, bf16 *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * EACH;
    float v[EACH], by[EACH];

    if (s >= n || o >= width)
        return;
    bf16_load(y + s * ldy + o, v);
    bf16_load(b + o, by);
    for (uint32_t k = 0; k < EACH; k++) {
        v[k] += by[k];
        v[k] = least > v[k] ? least : v[k]; /* a NaN stays one */
    }
    bf16_store(y + s * ldy + o, v);
}

cudaError_t kernels_bf16_bias(cudaStream_t stream, uint32_t n, uint32_t width, const bf16 *b,
                              enum device_act act, bf16 *y, uint32_t ldy)
{
    const float least = act == DEVICE_RELU ? 0.0f : -INFINITY;

    return cuda_compat_launch(bias, cuda_compat_grid(n, width / EACH), stream, n, width, b,
                              least, y, ldy);
}

/* The bound is hash_unit() >= p in integers. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    drop(size_t n, uint64_t least, float scale, const uint64_t *key_at, bf16 *y)
{
    const uint64_t key = *key_at;
    const size_t i = cuda_compat_index() * EACH;
    float v[EACH];

    if (i >= n)
        return;
    bf16_load(y + i, v);
    for (uint32_t k = 0; k < EACH; k++)
        v[k] *= hash_mix2(key, i + (uint64_t)k) >> 40 >= least ? scale : 0.0f;
    bf16_store(y + i, v);
}

cudaError_t kernels_bf16_dropout(cudaStream_t stream, const struct dropout *d, bf16 *y)
{
    const size_t n = (size_t)d->n * d->width;

    return cuda_compat_launch(drop, cuda_compat_flat(n / EACH), stream, n,
                              (uint64_t)ceilf(d->p * 0x1p24f), d->scale, d->key, y);
}

/* ---- sums over samples: of a block those of a thread, ascending, then the threads'; then column_sums.h ---- */

enum {
    LANES = COLUMN_SUMS_WIDE, /* of a block, side by side; and rows of them */
    DEEP = COLUMN_SUMS_DEEP,
    COLUMNS = LANES * EACH,
    TOGETHER = 4 /* samples whose loads are under way */
};

struct sums_finish {
    float *sums;

    __device__ void put(uint32_t o, const float &total) const
    {
        sums[o] = total;
    }
};

/* The block's sums of its columns, a row of `parts`. */
static __forceinline__ __device__ void fold(const float (&mine)[EACH], uint32_t width,
                                            float *parts)
{
    float *sums = cuda_compat_shared<float>(), total = 0;
    const uint32_t column = threadIdx.y * LANES + threadIdx.x,
                   o = blockIdx.y * COLUMNS + column;

    tf32_words::store(sums + threadIdx.y * COLUMNS + threadIdx.x * EACH, mine);
    __syncthreads();
    for (uint32_t i = 0; i < DEEP; i++)
        total += sums[i * COLUMNS + column];
    if (o < width)
        parts[o] = total;
    __syncthreads();
}

/* y NULL: d is summed. Else it passes the mask first, and goes back to where it was read. */
static __global__ void __launch_bounds__(LANES *DEEP)
    sums_part(struct bf16_mask mask, uint32_t n, uint32_t block, uint32_t width, bf16 *d,
              float *parts)
{
    const uint32_t o = (blockIdx.y * LANES + threadIdx.x) * EACH, first = blockIdx.x * block,
                   end = first + block < n ? first + block : n;
    float sum[EACH] = {};

    for (uint32_t s = first + threadIdx.y; s < end && o < width; s += DEEP * TOGETHER) {
        float v[TOGETHER][EACH] = {}, y[TOGETHER][EACH] = {};

        CUDA_COMPAT_UNROLL_4
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const size_t at = s + k * DEEP;

            if (at >= end)
                continue;
            bf16_load(d + at * width + o, v[k]);
            if (mask.y)
                bf16_load(mask.y + at * mask.ldy + o, y[k]);
        }
        CUDA_COMPAT_UNROLL_4
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const size_t at = s + k * DEEP;

            if (at >= end)
                continue;
            for (uint32_t i = 0; i < EACH && mask.y; i++)
                v[k][i] = y[k][i] > 0.0f ? v[k][i] * mask.scale : 0.0f;
            if (mask.y)
                bf16_store(d + at * width + o, v[k]);
            for (uint32_t i = 0; i < EACH; i++)
                sum[i] += v[k][i];
        }
    }
    fold(sum, width, parts + (size_t)blockIdx.x * width);
}

static struct cuda_compat_shape shape_of_parts(uint32_t n_parts, uint32_t width)
{
    return { dim3(n_parts, cuda_compat_ceil_div(width, COLUMNS)), dim3(LANES, DEEP),
             DEEP * COLUMNS * sizeof(float) };
}

template <typename Finish>
static cudaError_t launch_total(cudaStream_t stream, const Finish &finish, uint32_t n_parts,
                                uint32_t width, const float *parts)
{
    return cuda_compat_launch(column_sums_total<Finish, float>,
                              { dim3(1, cuda_compat_ceil_div(width, COLUMN_SUMS_WIDE)),
                                dim3(LANES, DEEP), LANES * DEEP * sizeof(float) },
                              stream, finish, n_parts, width, parts);
}

static cudaError_t launch_sums(cudaStream_t stream, uint32_t n, uint32_t width,
                               const struct bf16_mask &mask, bf16 *d, float *sums,
                               void *scratch)
{
    const uint32_t block = device_block(n), n_parts = cuda_compat_ceil_div(n, block);
    const cudaError_t error =
        cuda_compat_launch(sums_part, shape_of_parts(n_parts, width), stream, mask, n, block,
                           width, d, (float *)scratch);

    return error ? error
                 : launch_total(stream, sums_finish{ sums }, n_parts, width,
                                (const float *)scratch);
}

cudaError_t kernels_bf16_mask_sums(cudaStream_t stream, uint32_t n, uint32_t width,
                                   const struct bf16_mask *mask, bf16 *d, float *sums,
                                   void *scratch)
{
    return launch_sums(stream, n, width, *mask, d, sums, scratch);
}

cudaError_t kernels_bf16_bias_grad(cudaStream_t stream, uint32_t n, uint32_t width,
                                   const bf16 *dy, float *db, void *scratch)
{
    const struct bf16_mask none = {};

    return launch_sums(stream, n, width, none, (bf16 *)(uintptr_t)dy, db, scratch);
}

/* ---- logits ---- */

enum { LOGIT_LANES = 16 };

/* Half a warp a sample: each lane a sum of its numbers, EACH at once; then the lanes', ascending. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    logit(struct bf16_logit l, float *z)
{
    const size_t s = cuda_compat_row();
    const int first_lane = (int)((threadIdx.y * LOGIT_LANES) & 16);
    float sum = 0, total = 0, x[EACH], w[EACH];

    if (s < l.n)
        for (uint32_t i = threadIdx.x * EACH; i < l.in; i += LOGIT_LANES * EACH) {
            bf16_load(l.x + s * l.in + i, x);
            tf32_words::load(l.w + i, w);
            for (uint32_t k = 0; k < EACH; k++)
                sum += x[k] * w[k];
        }
    for (int i = 0; i < LOGIT_LANES; i++)
        total += __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, first_lane + i);
    if (s < l.n && threadIdx.x == 0)
        z[s] = total + l.b[0];
}

cudaError_t kernels_bf16_logit_forward(cudaStream_t stream, const struct bf16_logit *l,
                                       float *z)
{
    return cuda_compat_launch(logit, cuda_compat_grid(l->n, LOGIT_LANES), stream, *l, z);
}

/* A row of `parts`: of dw, of sums of dx, then of db. */
static uint32_t logit_width(const struct bf16_logit *l)
{
    return 2 * l->in + 1;
}

size_t kernels_bf16_logit_bytes(const struct bf16_logit *l)
{
    return kernels_sums_bytes(l->n, logit_width(l));
}

static __global__ void __launch_bounds__(LANES *DEEP)
    logit_part(struct bf16_logit l, float scale, uint32_t block, const float *dz, bf16 *dx,
               float *parts)
{
    const uint32_t o = (blockIdx.y * LANES + threadIdx.x) * EACH, first = blockIdx.x * block,
                   end = first + block < l.n ? first + block : l.n;
    float of_w[EACH] = {}, of_x[EACH] = {}, of_b[EACH] = {}, w[EACH] = {};

    if (o < l.in)
        tf32_words::load(l.w + o, w);
    for (uint32_t s = first + threadIdx.y; s < end && o < l.in; s += DEEP * TOGETHER) {
        float x[TOGETHER][EACH] = {}, slope[TOGETHER] = {};

        CUDA_COMPAT_UNROLL_4
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const size_t at = s + k * DEEP;

            if (at >= end)
                continue;
            bf16_load(l.x + at * l.in + o, x[k]);
            slope[k] = dz[at];
        }
        CUDA_COMPAT_UNROLL_4
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const size_t at = s + k * DEEP;
            float d[EACH];

            if (at >= end)
                continue;
            for (uint32_t i = 0; i < EACH; i++) {
                d[i] = x[k][i] > 0.0f ? w[i] * slope[k] * scale : 0.0f;
                of_w[i] += slope[k] * x[k][i];
                of_x[i] += d[i];
            }
            of_b[0] += slope[k];
            bf16_store(dx + at * l.in + o, d);
        }
    }
    parts += (size_t)blockIdx.x * (2 * l.in + 1);
    fold(of_w, l.in, parts);
    fold(of_x, l.in, parts + l.in);
    if (blockIdx.y == 0) /* all of a block, or none */
        fold(of_b, 1, parts + 2 * l.in);
}

struct logit_finish {
    float *dw, *sums, *db;
    uint32_t in;

    __device__ void put(uint32_t o, const float &total) const
    {
        if (o < in)
            dw[o] = total;
        else if (o < 2 * in)
            sums[o - in] = total;
        else
            *db = total;
    }
};

cudaError_t kernels_bf16_logit_backward(cudaStream_t stream, const struct bf16_logit *l,
                                        const float *dz, bf16 *dx, float scale, float *dw,
                                        float *db, float *sums, void *scratch)
{
    const uint32_t block = device_block(l->n), n_parts = cuda_compat_ceil_div(l->n, block);
    const struct logit_finish finish = { dw, sums, db, l->in };
    const cudaError_t error =
        cuda_compat_launch(logit_part, shape_of_parts(n_parts, l->in), stream, *l, scale, block,
                           dz, dx, (float *)scratch);

    return error
               ? error
               : launch_total(stream, finish, n_parts, logit_width(l), (const float *)scratch);
}
