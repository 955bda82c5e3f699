/* Batch normalisation. Sums over samples are in double. */
#include <math.h>

#include "worker/cuda/column_sums.h"
#include "worker/cuda/kernels.h"

static __forceinline__ __device__ float inverse_std(float var)
{
    return (float)(1 / sqrt((double)var + (double)DEVICE_NORM_EPSILON));
}

/* Mean and variance in one walk, of the differences from the first sample: a sample is at most sqrt(n) standard
 * deviations from the mean, so the variance keeps all but log10(n) of a double's 16 digits. */
struct norm_spread {
    typedef struct column_sums_pair sum;
    typedef float value;
    const float *x;
    uint32_t width;

    __device__ float load(size_t s, uint32_t o) const
    {
        return x[s * width + o];
    }

    __device__ void add(struct column_sums_pair &to, float v, size_t s, uint32_t o) const
    {
        const double d = (double)v - (double)x[o];

        (void)s;
        to.a += d;
        to.b += d * d;
    }
};

struct norm_spread_finish {
    struct norm nm;
    const float *x;

    __device__ void put(uint32_t o, const struct column_sums_pair &total) const
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

    return column_sums_sum(stream, term, finish, nm->n, nm->width, scratch);
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) running(struct norm nm)
{
    const size_t o = cuda_compat_index();
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
    return cuda_compat_launch(running, cuda_compat_flat(nm->width), stream, *nm);
}

/* least: 0 for ReLU, else -infinity; a NaN stays one. */
template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    apply(struct norm nm, float least, const float *x, float *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    struct cuda_compat_floats<N> v;

    if (s >= nm.n || o >= nm.width)
        return;
    v = dev_load<N>(x + s * nm.width + o);
    for (uint32_t k = 0; k < N; k++) {
        v.at[k] = (1 + nm.gamma[o + k]) * ((v.at[k] - nm.mean[o + k]) * nm.inv_std[o + k]) +
                  nm.beta[o + k];
        v.at[k] = least > v.at[k] ? least : v.at[k];
    }
    dev_store(y + s * ldy + o, v);
}

cudaError_t kernels_norm_apply(cudaStream_t stream, const struct norm *nm, enum device_act act,
                               const float *x, float *y, uint32_t ldy)
{
    const float least = act == DEVICE_RELU ? 0.0f : -INFINITY;

    if (dev_by_fours(x, nm->width) && dev_by_fours(y, ldy))
        return cuda_compat_launch(apply<4>, cuda_compat_grid(nm->n, nm->width / 4), stream, *nm,
                                  least, x, y, ldy);
    return cuda_compat_launch(apply<1>, cuda_compat_grid(nm->n, nm->width), stream, *nm, least,
                              x, y, ldy);
}

/* What the way back reads of N columns of a sample. */
struct norm_back {
    struct norm nm;
    struct relu_mask mask; /* y NULL: none */
    const float *x;
    float *dy;

    template <int N>
    __forceinline__ __device__ struct cuda_compat_floats<N> xhat(size_t s, uint32_t o) const {
        struct cuda_compat_floats<N> v = dev_load<N>(x + s * nm.width + o);

        for (uint32_t k = 0; k < N; k++)
            v.at[k] = (v.at[k] - nm.mean[o + k]) * nm.inv_std[o + k];
        return v;
    }

    template <int N>
    __forceinline__ __device__ struct cuda_compat_floats<N> masked(size_t s, uint32_t o) const {
        struct cuda_compat_floats<N> d = dev_load<N>(dy + s * nm.width + o), y;

        if (mask.y) {
            y = dev_load<N>(mask.y + s * mask.ldy + o);
            for (uint32_t k = 0; k < N; k++)
                d.at[k] = y.at[k] > 0.0f ? d.at[k] * mask.scale : 0.0f;
        }
        return d;
    }
};

struct norm_slopes {
    typedef struct column_sums_pair sum;
    struct value {
        float d, xhat;
    };
    struct norm_back w;

    __device__ struct value load(size_t s, uint32_t o) const
    {
        return { w.masked<1>(s, o).at[0], w.xhat<1>(s, o).at[0] };
    }

    __device__ void add(struct column_sums_pair &to, const struct value &v, size_t s,
                        uint32_t o) const
    {
        (void)s, (void)o;
        to.a += (double)v.d;
        to.b += (double)v.d * (double)v.xhat;
    }
};

struct norm_slopes_finish {
    struct norm nm;
    struct norm_grads grads;
    struct column_sums_pair *means; /* [width]: of dy, of dy xhat */

    __device__ void put(uint32_t o, const struct column_sums_pair &total) const
    {
        const float unbias = nm.n > 1 ? (float)nm.n / (float)(nm.n - 1) : 1.0f;
        const double n = nm.n ? nm.n : 1;

        grads.beta[o] = (float)total.a;
        grads.gamma[o] = (float)total.b;
        means[o].a = total.a / n;
        means[o].b = total.b / n;
        grads.running_mean[o] =
            nm.n ? DEVICE_NORM_MOMENTUM * (nm.running_mean[o] - nm.mean[o]) : 0;
        grads.running_var[o] =
            nm.n ? DEVICE_NORM_MOMENTUM * (1 + nm.running_var[o] - nm.var[o] * unbias) : 0;
    }
};

/* dx = (1 + gamma) inv_std (dy - (mean of dy + xhat mean of dy xhat)) */
template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    slope_of_x(struct norm_back w, const struct column_sums_pair *means)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    struct cuda_compat_floats<N> d, xhat;

    if (s >= w.nm.n || o >= w.nm.width)
        return;
    d = w.masked<N>(s, o);
    xhat = w.xhat<N>(s, o);
    for (uint32_t k = 0; k < N; k++) {
        d.at[k] -= (float)(means[o + k].a + (double)xhat.at[k] * means[o + k].b);
        d.at[k] *= (1 + w.nm.gamma[o + k]) * w.nm.inv_std[o + k];
    }
    dev_store(w.dy + s * w.nm.width + o, d);
}

static cudaError_t launch_slope_of_x(cudaStream_t stream, const struct norm_back &w,
                                     const struct column_sums_pair *means)
{
    const uint32_t n = w.nm.n, width = w.nm.width;

    if (dev_by_fours(w.x, width) && dev_by_fours(w.dy, width) &&
        dev_by_fours(w.mask.y, w.mask.ldy))
        return cuda_compat_launch(slope_of_x<4>, cuda_compat_grid(n, width / 4), stream, w,
                                  means);
    return cuda_compat_launch(slope_of_x<1>, cuda_compat_grid(n, width), stream, w, means);
}

cudaError_t kernels_norm_backward(cudaStream_t stream, const struct norm *nm,
                                  const struct relu_mask *mask, const float *x, float *dy,
                                  const struct norm_grads *grads, void *scratch)
{
    const struct relu_mask none = {};
    const struct norm_back w = { *nm, mask ? *mask : none, x, dy };
    struct column_sums_pair *means = (struct column_sums_pair *)scratch,
                            *parts = means + nm->width;
    const struct norm_slopes_finish finish = { *nm, *grads, means };
    const struct norm_slopes term = { w };
    cudaError_t error = column_sums_sum(stream, term, finish, nm->n, nm->width, parts);

    return error ? error : launch_slope_of_x(stream, w, means);
}

size_t kernels_sums_bytes(uint32_t n, uint32_t width)
{
    return ((size_t)column_sums_n_parts_max(n) + 1) * ((size_t)width + 1) *
           sizeof(struct column_sums_pair);
}
