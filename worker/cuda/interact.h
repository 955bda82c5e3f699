/*
 * Interactions on tensor cores, for interact.cu, and what the two share.
 */
#ifndef WORKER_CUDA_INTERACT_H
#define WORKER_CUDA_INTERACT_H

#include "worker/compute/device.h"
#include "worker/cuda/cuda_compat.h"

/* The first element of row i of the pairs: those of i with j < i, or j <= i with `self`. */
static __forceinline__ __host__ __device__ uint32_t interact_row(uint32_t i, uint32_t self)
{
    return self ? i * (i + 1) / 2 : i * (i - 1) / 2;
}

/* Floats from a row of R to the next. */
static __forceinline__ __host__ __device__ size_t interact_ldr(const struct interact &it)
{
    return it.ldr ? it.ldr : it.direct + interact_row(it.n_vectors, it.self);
}

/* Where T's last n_fields vectors come from, sums of bags: of one row from that row, of more from T. n_fields 0: all
 * vectors stand in T. */
template <typename Number> struct interact_sources {
    uint32_t n_fields;
    const uint32_t *starts, *row_of; /* as of struct bags */
    const Number *rows;              /* at multiples of 16 bytes */
};

/* True if there is a kernel for this shape, at these addresses. dt may be NULL. */
bool interact_tf32_fits(const struct interact *it, const float *t, const float *dt);

/* Forward makes the sums of bags with several rows in T. dfirst: by fours, and dr too then, or NULL. */
cudaError_t interact_tf32_forward(cudaStream_t stream, const struct interact *it,
                                  const struct interact_sources<float> *from, float *t,
                                  float *r);
cudaError_t interact_tf32_backward(cudaStream_t stream, const struct interact *it,
                                   const struct interact_sources<float> *from, const float *t,
                                   const float *dr, float *dt, const struct relu_mask *mask,
                                   float *dfirst);

#endif
