#include "worker/cuda/cuda.h"

#include <assert.h>

bool cuda_use_device(int device, struct cuda_error *f)
{
    return cuda_error_check(f, "choosing the GPU", cudaSetDevice(device));
}

void cuda_try_device(int device)
{
    (void)cudaSetDevice(device);
}

void cuda_synchronize(struct compute *c)
{
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (c->streams[i])
            (void)cudaStreamSynchronize(c->streams[i]);
}

void cuda_release_graphs(struct compute *c)
{
    cuda_synchronize(c);
    graphs_clear(&c->graphs);
}

void *cuda_scratch(struct compute *c, size_t n_bytes, struct cuda_error *f)
{
    const size_t least = n_bytes ? n_bytes : 1;

    if (least > c->scratch.n_bytes) {
        /* A record's ops have all been run before, with the same arguments. */
        assert(!c->recording);
        cuda_release_graphs(c);
        if (!cuda_error_check(f, "kernels' memory", scratch_reserve(&c->scratch, least)))
            return NULL;
    }
    return c->scratch.memory;
}
