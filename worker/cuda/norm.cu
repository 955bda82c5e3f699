/* Batch normalisation. Sums over samples are in double. */
#include <math.h>

#include "worker/cuda/columns.h"
#include "worker/cuda/kernels.h"

static __forceinline__ __device__ float inverse_std(float var)
{
    return (float)(1 / sqrt((double)var + (double)COMPUTE_NORM_EPSILON));
}

/* Mean and variance in one walk, of the differences from the first sample: a sample is at most sqrt(n) standard deviations from the
 * mean, so the variance keeps all but log10(n) of a double's 16 digits. */
struct norm_spread {
    typedef struct columns_pair sum;
    const float *x;
    uint32_t width;

    __device__ void add(struct columns_pair &to, size_t s, uint32_t o) const
    {
        const double d = (double)x[s * width + o] - (double)x[o];

        to.a += d;
        to.b += d * d;
    }
};

struct norm_spread_finish {
    struct norm nm;
    const float *x;

    __device__ void put(uint32_t o, const struct columns_pair &total) const
    {
        const double n = nm.n ? nm.n : 1, mean = total.a / n;
        const double var = total.b / n - mean * mean;

        nm.mean[o] = (float)(nm.n ? (double)x[o] + mean : 0);
        nm.var[o] = (float)(0 > var ? 0 : var);
        nm.inv_std[o] = inverse_std(nm.var[o]);
    }
};

cudaError_t kernels_norm_batch(cudaStream_t stream, const struct norm *nm, const float *x,
                               void *scratch)
{
    const struct norm_spread term = { x, nm->width };
    const struct norm_spread_finish finish = { *nm, x };

    return columns_sum(stream, term, finish, nm->n, nm->width, scratch);
}

static __global__ void __launch_bounds__(DEV_THREADS) running(struct norm nm)
{
    const size_t o = dev_index();
    float var;

    if (o >= nm.width)
        return;
    var = 1 + nm.running_var[o];
    nm.mean[o] = nm.running_mean[o];
    nm.var[o] = var > 0 ? var : 0; /* lossy pushes may leave a tiny variance below 0 */
    nm.inv_std[o] = inverse_std(nm.var[o]);
}

cudaError_t kernels_norm_running(cudaStream_t stream, const struct norm *nm)
{
    return dev_launch(running, dev_flat(nm->width), stream, *nm);
}

/* least: 0 for ReLU, else -infinity; a NaN stays one. */
static __global__ void __launch_bounds__(DEV_THREADS)
    apply(struct norm nm, float least, const float *x, float *y, uint32_t ldy)
{
    const size_t s = dev_row();
    const uint32_t o = dev_column();
    float v;

    if (s >= nm.n || o >= nm.width)
        return;
    v = (1 + nm.gamma[o]) * ((x[s * nm.width + o] - nm.mean[o]) * nm.inv_std[o]) + nm.beta[o];
    y[s * ldy + o] = least > v ? least : v;
}

cudaError_t kernels_norm_apply(cudaStream_t stream, const struct norm *nm, enum compute_act act,
                               const float *x, float *y, uint32_t ldy)
{
    const float least = act == COMPUTE_RELU ? 0.0f : -INFINITY;

    return dev_launch(apply, dev_grid(nm->n, nm->width), stream, *nm, least, x, y, ldy);
}

/* What the way back reads of a sample's column. */
struct norm_back {
    struct norm nm;
    struct relu_mask mask; /* y NULL: none */
    const float *x;
    float *dy;

    __forceinline__ __device__ float xhat(size_t s, uint32_t o) const
    {
        return (x[s * nm.width + o] - nm.mean[o]) * nm.inv_std[o];
    }

    __forceinline__ __device__ float masked(size_t s, uint32_t o) const
    {
        const float d = dy[s * nm.width + o];

        if (!mask.y)
            return d;
        return mask.y[s * mask.ldy + o] > 0.0f ? d * mask.scale : 0.0f;
    }
};

struct norm_slopes {
    typedef struct columns_pair sum;
    struct norm_back w;

    __device__ void add(struct columns_pair &to, size_t s, uint32_t o) const
    {
        const double d = (double)w.masked(s, o);

        to.a += d;
        to.b += d * (double)w.xhat(s, o);
    }
};

struct norm_slopes_finish {
    struct norm nm;
    struct norm_grads grads;
    struct columns_pair *means; /* [width]: of dy, of dy xhat */

    __device__ void put(uint32_t o, const struct columns_pair &total) const
    {
        const float unbias = nm.n > 1 ? (float)nm.n / (float)(nm.n - 1) : 1.0f;
        const double n = nm.n ? nm.n : 1;

        grads.beta[o] = (float)total.a;
        grads.gamma[o] = (float)total.b;
        means[o].a = total.a / n;
        means[o].b = total.b / n;
        grads.running_mean[o] =
            nm.n ? COMPUTE_NORM_MOMENTUM * (nm.running_mean[o] - nm.mean[o]) : 0;
        grads.running_var[o] =
            nm.n ? COMPUTE_NORM_MOMENTUM * (1 + nm.running_var[o] - nm.var[o] * unbias) : 0;
    }
};

/* dx = (1 + gamma) inv_std (dy - (mean of dy + xhat mean of dy xhat)) */
static __global__ void __launch_bounds__(DEV_THREADS)
    slope_of_x(struct norm_back w, const struct columns_pair *means)
{
    const size_t s = dev_row();
    const uint32_t o = dev_column();
    float d;

    if (s >= w.nm.n || o >= w.nm.width)
        return;
    d = w.masked(s, o) - (float)(means[o].a + (double)w.xhat(s, o) * means[o].b);
    w.dy[s * w.nm.width + o] = d * ((1 + w.nm.gamma[o]) * w.nm.inv_std[o]);
}

cudaError_t kernels_norm_backward(cudaStream_t stream, const struct norm *nm,
                                  const struct relu_mask *mask, const float *x, float *dy,
                                  const struct norm_grads *grads, void *scratch)
{
    const struct relu_mask none = {};
    const struct norm_back w = { *nm, mask ? *mask : none, x, dy };
    struct columns_pair *means = (struct columns_pair *)scratch, *parts = means + nm->width;
    const struct norm_slopes_finish finish = { *nm, *grads, means };
    const struct norm_slopes term = { w };
    cudaError_t error = columns_sum(stream, term, finish, nm->n, nm->width, parts);

    return error ? error
                 : dev_launch(slope_of_x, dev_grid(nm->n, nm->width), stream, w,
                              (const struct columns_pair *)means);
}

size_t kernels_sums_bytes(uint32_t n, uint32_t width)
{
    return ((size_t)columns_n_parts_max(n) + 1) * ((size_t)width + 1) *
           sizeof(struct columns_pair);
}
