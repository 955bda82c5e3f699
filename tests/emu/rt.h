/*
 * What the worker uses of the CUDA runtime, on the CPU, under CUDA's own names.
 */
#ifndef TESTS_EMU_RT_H
#define TESTS_EMU_RT_H

#include "common/base.h"

enum cudaError { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2 };
typedef enum cudaError cudaError_t;
typedef struct emu_stream *cudaStream_t;

/* Puts work on a stream: run(arg), once or, in a graph, as often as that is launched; then drop(arg). The emulated
 * kernels' launches come through here. */
EXTERN_C cudaError_t emu_stream_launch(cudaStream_t stream, void (*run)(void *arg),
                                       void (*drop)(void *arg), void *arg);

#endif
