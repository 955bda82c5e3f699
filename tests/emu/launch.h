/*
 * Where the emulated device and the emulated runtime meet: a kernel's launch is work for a stream.
 */
#ifndef TESTS_EMU_LAUNCH_H
#define TESTS_EMU_LAUNCH_H

#include <cuda_runtime_api.h>

#include "common/base.h"

/* run(arg) when the stream comes to it: once or, captured into a graph, as often as that is launched; drop(arg) when it will not
 * be run again. */
EXTERN_C cudaError_t emu_stream_launch(cudaStream_t stream, void (*run)(void *arg),
                                       void (*drop)(void *arg), void *arg);

#endif
