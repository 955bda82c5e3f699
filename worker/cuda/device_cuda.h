/* device.h on a GPU of NVIDIA's: compute capability 8.0 or later, the first device that CUDA shows. */
#ifndef WORKER_CUDA_DEVICE_CUDA_H
#define WORKER_CUDA_DEVICE_CUDA_H

#include "worker/compute/device.h"

EXTERN_C const struct device_ops device_cuda;

#endif
