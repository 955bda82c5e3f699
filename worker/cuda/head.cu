/*
 * Layers of one output, and bias gradients.
 *
 *     y    sixteen sums side by side, input i in sum i % 16; then those, ascending; + b: half a warp a sample
 *     dw   in blocks of samples, as db (column_sums.h)
 */
#include <math.h>

#include "worker/cuda/column_sums.h"
#include "worker/cuda/kernels.h"

enum { LANES = 16 };

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    forward(struct linear l, float least, float *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t lane = threadIdx.x;
    const float *x = l.x + s * linear_ldx(&l);
    float sum = 0, total = 0;

    if (s < l.n)
        for (uint32_t i = lane; i < l.in; i += LANES)
            sum += x[i] * l.w[i];
    for (int i = 0; i < LANES; i++)
        total += __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, (int)((threadIdx.y * LANES) & 16) + i);
    if (s >= l.n || lane)
        return;
    total += l.b[0];
    y[s * ldy] = least > total ? least : total;
}

cudaError_t kernels_head_forward(cudaStream_t stream, const struct linear *l,
                                 enum device_act act, float *y, uint32_t ldy)
{
    const float least = act == DEVICE_RELU ? 0.0f : -INFINITY;

    return cuda_compat_launch(forward, cuda_compat_grid(l->n, LANES), stream, *l, least, y,
                              ldy);
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    slope_of_x(struct linear l, const float *dy, struct relu_mask mask, float *dx)
{
    const size_t s = cuda_compat_row();
    const uint32_t i = cuda_compat_column() * N;
    struct cuda_compat_floats<N> d, y;

    if (s >= l.n || i >= l.in)
        return;
    d = dev_load<N>(l.w + i);
    for (float &v : d.at)
        v *= dy[s];
    if (mask.y) {
        y = dev_load<N>(mask.y + s * mask.ldy + i);
        for (uint32_t k = 0; k < N; k++)
            d.at[k] = y.at[k] > 0.0f ? d.at[k] * mask.scale : 0.0f;
    }
    dev_store(dx + s * linear_ldx(&l) + i, d);
}

static cudaError_t launch_slope_of_x(cudaStream_t stream, const struct linear *l,
                                     const float *dy, const struct relu_mask &mask, float *dx)
{
    if (dev_by_fours(l->w, l->in) && dev_by_fours(mask.y, mask.ldy) &&
        dev_by_fours(dx, linear_ldx(l)))
        return cuda_compat_launch(slope_of_x<4>, cuda_compat_grid(l->n, l->in / 4), stream, *l,
                                  dy, mask, dx);
    return cuda_compat_launch(slope_of_x<1>, cuda_compat_grid(l->n, l->in), stream, *l, dy,
                              mask, dx);
}

/* Columns 0 .. in - 1 are dw, column `in` is db. */
struct head_weights {
    typedef float sum, value;
    const float *x, *dy;
    uint32_t in, ldx;

    __device__ float load(size_t s, uint32_t o) const
    {
        return o < in ? dy[s] * x[s * ldx + o] : dy[s];
    }

    __device__ void add(float &to, float v, size_t s, uint32_t o) const
    {
        (void)s, (void)o;
        to += v;
    }
};

struct head_weights_finish {
    float *dw, *db; /* db NULL: not wanted */
    uint32_t in;

    __device__ void put(uint32_t o, const float &total) const
    {
        if (o < in)
            dw[o] = total;
        else if (db)
            *db = total;
    }
};

struct head_bias {
    typedef float sum, value;
    const float *dy;
    uint32_t width;

    __device__ float load(size_t s, uint32_t o) const
    {
        return dy[s * width + o];
    }

    __device__ void add(float &to, float v, size_t s, uint32_t o) const
    {
        (void)s, (void)o;
        to += v;
    }
};

struct head_bias_finish {
    float *db;

    __device__ void put(uint32_t o, const float &total) const
    {
        db[o] = total;
    }
};

cudaError_t kernels_bias_grad(cudaStream_t stream, uint32_t n, uint32_t width, const float *dy,
                              float *db, void *scratch)
{
    const struct head_bias term = { dy, width };
    const struct head_bias_finish finish = { db };

    return column_sums_sum(stream, term, finish, n, width, scratch);
}

/* Of what the mask leaves, which goes back to where it was read. */
struct masked_bias {
    typedef float sum;
    struct value {
        float d, y;
    };
    struct relu_mask mask;
    float *d;
    uint32_t width;

    __device__ struct value load(size_t s, uint32_t o) const
    {
        return { d[s * width + o], mask.y[s * mask.ldy + o] };
    }

    __device__ void add(float &to, const struct value &v, size_t s, uint32_t o) const
    {
        const float left = v.y > 0.0f ? v.d * mask.scale : 0.0f;

        d[s * width + o] = left;
        to += left;
    }
};

cudaError_t kernels_mask_sums(cudaStream_t stream, uint32_t n, uint32_t width,
                              const struct relu_mask *mask, float *d, float *sums,
                              void *scratch)
{
    const struct masked_bias term = { *mask, d, width };
    const struct head_bias_finish finish = { sums };

    return column_sums_sum(stream, term, finish, n, width, scratch);
}

/* Column o < in: dw, and the sum of dx, which is made as x is read: through the mask, which reads it, too. Column
 * `in`: db. The same sums in the same order as one by one. */
struct head_all {
    struct sum {
        float w, dx;

        __device__ void operator+=(const struct sum &more)
        {
            w += more.w;
            dx += more.dx;
        }
    };
    struct value {
        float x, dy, w;
    };
    const float *x, *dy, *w;
    float *dx, scale;
    uint32_t in, ldx;

    __device__ struct value load(size_t s, uint32_t o) const
    {
        return o < in ? value{ x[s * ldx + o], dy[s], w[o] } : value{ 1, dy[s], 0 };
    }

    __device__ void add(struct sum &to, const struct value &v, size_t s, uint32_t o) const
    {
        const float d = v.x > 0.0f ? v.w * v.dy * scale : 0.0f;

        to.w += v.dy * v.x;
        if (o < in)
            dx[s * ldx + o] = d;
        to.dx += d;
    }
};

struct head_all_finish {
    float *dw, *db, *sums;
    uint32_t in;

    __device__ void put(uint32_t o, const struct head_all::sum &total) const
    {
        if (o < in) {
            dw[o] = total.w;
            sums[o] = total.dx;
        } else if (db) {
            *db = total.w;
        }
    }
};

cudaError_t kernels_head_backward(cudaStream_t stream, const struct linear *l, const float *dy,
                                  float *dx, const struct relu_mask *mask, float *dw, float *db,
                                  float *sums, void *scratch)
{
    const struct relu_mask none = {};
    const struct head_weights term = { l->x, dy, l->in, linear_ldx(l) };
    const struct head_weights_finish finish = { dw, db, l->in };
    cudaError_t error = cudaSuccess;

    if (dw && sums && mask && mask->y == l->x && mask->ldy == linear_ldx(l)) {
        const struct head_all all = { l->x, dy, l->w, dx, mask->scale, l->in, linear_ldx(l) };
        const struct head_all_finish all_finish = { dw, db, sums, l->in };

        return column_sums_sum(stream, all, all_finish, l->n, l->in + 1, scratch);
    }
    if (dw)
        error = column_sums_sum(stream, term, finish, l->n, l->in + 1, scratch);
    if (!error && dx)
        error = launch_slope_of_x(stream, l, dy, mask ? *mask : none, dx);
    return error || !sums ? error : kernels_bias_grad(stream, l->n, l->in, dx, sums, scratch);
}
