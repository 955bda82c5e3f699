/* The epilogue of a product, on each block while it is in a cache: bias and ReLU forward, the mask of ReLU and the
 * sums of bias gradients backward. */
#ifndef WORKER_COMPUTE_CPU_EPILOGUE_H
#define WORKER_COMPUTE_CPU_EPILOGUE_H

#include "worker/compute/device_args.h"

/* y [n][width] = act(x [n][width] + b); y may be x */
void cpu_epilogue_bias(uint32_t n, uint32_t width, const float *x, uint32_t ldx, const float *b,
                       enum device_act act, float *y, uint32_t ldy);

/* d [n][width] = x through mask (NULL: as it is), whose first row is that of d; d may be x */
void cpu_epilogue_mask(uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                       const struct relu_mask *mask, float *d, uint32_t ldd);

/* sum [width] = sum of rows of x [n][width], ascending */
void cpu_epilogue_sum(uint32_t n, uint32_t width, const float *x, uint32_t ldx, float *sum);

#endif
