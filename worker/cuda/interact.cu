/*
 * Pairwise dot products of a sample's vectors, exactly as the CPU: each product a sum over d ascending, each element
 * of dt a sum over j ascending, no product fused. A block takes a sample, and keeps its vectors in shared memory where
 * they fit. interact_tensor.cu is the fast way.
 */
#include "worker/cuda/interact.h"

#include "worker/cuda/kernels.h"

enum {
    THREADS = 128,
    STAGED_MAX = 12 * 1024 /* floats of a sample that shared memory takes */
};

/* The row of pair p, of rows that begin at interact_row(): from a row or two before it on, as the root is rounded. */
static __forceinline__ __device__ uint32_t row_of(uint32_t p, uint32_t self)
{
    const uint32_t root = (uint32_t)((sqrtf(8.0f * (float)p + 1) - 1) / 2);
    uint32_t i = root ? root - 1 : 0;

    while (interact_row(i + 1, self) <= p)
        i++;
    return i;
}

/* The sample's vectors: as they are, or staged, with an odd number of floats from one to the next, so that
 * neighbours read different banks. */
struct vectors {
    const float *at;
    uint32_t ld;
};

static __forceinline__ __device__ struct vectors stage(const struct interact &it,
                                                       const float *t, bool staged)
{
    float *to = cuda_compat_shared<float>();
    const uint32_t ld = it.dim | 1;

    if (!staged)
        return { t, it.dim };
    for (uint32_t i = threadIdx.x; i < it.n_vectors * it.dim; i += THREADS)
        to[i / it.dim * ld + i % it.dim] = t[i];
    __syncthreads();
    return { to, ld };
}

static __global__ void __launch_bounds__(THREADS)
    forward(struct interact it, bool staged, const float *t, float *r)
{
    const uint32_t n_pairs = interact_row(it.n_vectors, it.self);
    const struct vectors v = stage(it, t + (size_t)blockIdx.x * it.n_vectors * it.dim, staged);

    r += blockIdx.x * interact_ldr(it);
    for (uint32_t d = threadIdx.x; d < it.direct; d += THREADS)
        r[d] = v.at[d];
    for (uint32_t p = threadIdx.x; p < n_pairs; p += THREADS) {
        const uint32_t i = row_of(p, it.self), j = p - interact_row(i, it.self);
        const float *a = v.at + (size_t)i * v.ld, *b = v.at + (size_t)j * v.ld;
        float sum = 0;

        for (uint32_t d = 0; d < it.dim; d++)
            sum += a[d] * b[d];
        r[it.direct + p] = sum;
    }
}

/* Row i of dz holds the pairs with j < i; pairs with j > i stand in column i of the rows below. */
static __global__ void __launch_bounds__(THREADS)
    backward(struct interact it, bool staged, const float *t, const float *dr, float *dt)
{
    const size_t at = (size_t)blockIdx.x * it.n_vectors * it.dim;
    const struct vectors v = stage(it, t + at, staged);
    const float *dz = dr + blockIdx.x * interact_ldr(it) + it.direct;

    for (uint32_t k = threadIdx.x; k < it.n_vectors * it.dim; k += THREADS) {
        const uint32_t i = k / it.dim;
        const float *row = dz + interact_row(i, it.self), *other = v.at + k % it.dim;
        float sum = 0;

        for (uint32_t j = 0; j < i; j++, other += v.ld)
            sum += row[j] * *other;
        if (it.self)
            sum += 2.0f * row[i] * *other;
        other += v.ld;
        for (uint32_t j = i + 1; j < it.n_vectors; j++, other += v.ld)
            sum += dz[interact_row(j, it.self) + i] * *other;
        dt[at + k] = sum;
    }
}

static struct cuda_compat_shape shape_of(const struct interact *it)
{
    const size_t n_floats = (size_t)it->n_vectors * (it->dim | 1);

    return { dim3(it->n), dim3(THREADS),
             n_floats <= STAGED_MAX ? n_floats * sizeof(float) : 0 };
}

cudaError_t kernels_interact_forward(cudaStream_t stream, enum kernels_math math,
                                     const struct interact *it, const float *t, float *r)
{
    const struct cuda_compat_shape shape = shape_of(it);
    const struct interact_sources<float> all_in_t = {
    };

    if (math == KERNELS_TF32 && interact_tf32_fits(it, t, NULL)) /* t is read alone: no bags */
        return interact_tf32_forward(stream, it, &all_in_t, (float *)(uintptr_t)t, r);
    return cuda_compat_launch(forward, shape, stream, *it, shape.n_shared > 0, t, r);
}

cudaError_t kernels_interact_backward(cudaStream_t stream, enum kernels_math math,
                                      const struct interact *it, const float *t,
                                      const float *dr, float *dt)
{
    const struct cuda_compat_shape shape = shape_of(it);
    const struct interact_sources<float> all_in_t = {
    };

    if (math == KERNELS_TF32 && interact_tf32_fits(it, t, dt))
        return interact_tf32_backward(stream, it, &all_in_t, t, dr, dt, NULL, NULL);
    return cuda_compat_launch(backward, shape, stream, *it, shape.n_shared > 0, t, dr, dt);
}

/* Whether bags of one row are read where they stand. */
static bool gathers(enum kernels_math math, const float *rows, const struct interact *it,
                    const float *t, const float *dt)
{
    return math == KERNELS_TF32 && interact_tf32_fits(it, t, dt) && dev_by_fours(rows, it->dim);
}

static cudaError_t sum_into(cudaStream_t stream, const struct bags *b, const float *rows,
                            const struct interact *it, float *t)
{
    return kernels_bag_sum(stream, b, rows, t + (it->n_vectors - b->n_fields) * it->dim,
                           it->n_vectors * it->dim);
}

cudaError_t kernels_interact_bags_forward(cudaStream_t stream, enum kernels_math math,
                                          const struct bags *b, const float *rows,
                                          const struct interact *it, float *t, float *r)
{
    const struct interact_sources<float> from = {
        b->n_fields, b->starts, b->row_of, rows
    };
    cudaError_t error;

    if (gathers(math, rows, it, t, NULL))
        return interact_tf32_forward(stream, it, &from, t, r);
    error = sum_into(stream, b, rows, it, t);
    return error ? error : kernels_interact_forward(stream, math, it, t, r);
}

/* Where dt lies so that the exact way is taken, T is not complete yet. */
static cudaError_t backward_exactly(cudaStream_t stream, enum kernels_math math,
                                    const struct bags *b, const float *rows,
                                    const struct interact *it, float *t, const float *dr,
                                    float *dt)
{
    const cudaError_t error =
        gathers(math, rows, it, t, NULL) ? sum_into(stream, b, rows, it, t) : cudaSuccess;

    return error ? error : kernels_interact_backward(stream, math, it, t, dr, dt);
}

cudaError_t kernels_interact_bags_backward(cudaStream_t stream, enum kernels_math math,
                                           const struct bags *b, const float *rows,
                                           const struct interact *it, float *t, const float *dr,
                                           float *dt, const struct relu_mask *mask,
                                           float *dfirst)
{
    const struct interact_sources<float> from = {
        b->n_fields, b->starts, b->row_of, rows
    };
    cudaError_t error;

    if (gathers(math, rows, it, t, dt) && dev_by_fours(dr, interact_ldr(*it)) &&
        dev_by_fours(dfirst, it->dim) && (!mask || dev_by_fours(mask->y, mask->ldy)))
        return interact_tf32_backward(stream, it, &from, t, dr, dt, mask, dfirst);
    if (gathers(math, rows, it, t, dt))
        error = interact_tf32_backward(stream, it, &from, t, dr, dt, NULL, NULL);
    else
        error = backward_exactly(stream, math, b, rows, it, t, dr, dt);
    if (error || !dfirst)
        return error;
    return kernels_add_rows(stream, it->n, it->dim, dr, (uint32_t)interact_ldr(*it), dt,
                            it->n_vectors * it->dim, mask, dfirst);
}
