#include "tests/emu/launch.h"

cudaError_t emu_stream_launch(cudaStream_t stream, void (*run)(void *arg),
                              void (*drop)(void *arg), void *arg)
{
    (void)stream;
    run(arg);
    drop(arg);
    return cudaSuccess;
}
