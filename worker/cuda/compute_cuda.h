/* compute.h on a GPU of NVIDIA's: compute capability 8.0 or later, the first device that CUDA shows. */
#ifndef WORKER_CUDA_COMPUTE_CUDA_H
#define WORKER_CUDA_COMPUTE_CUDA_H

#include "worker/compute/compute.h"

EXTERN_C const struct compute_ops compute_cuda;

#endif
