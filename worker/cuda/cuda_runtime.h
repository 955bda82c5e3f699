/* The CUDA runtime under its own names. Without CUDA the compiler finds the tests' emulation of it
 * (tests/emu/include). */
#ifndef WORKER_CUDA_CUDA_RUNTIME_H
#define WORKER_CUDA_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#endif
