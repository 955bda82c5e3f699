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

static void *grow(struct compute *c, struct scratch *s, size_t n_bytes, struct cuda_error *f)
{
    const size_t least = n_bytes ? n_bytes : 1;

    if (least > s->n_bytes) {
        /* A record's ops have all been run before, with the same arguments. */
        assert(!c->recording);
        cuda_release_graphs(c);
        if (!cuda_error_check(f, "kernels' memory", scratch_reserve(s, least)))
            return NULL;
    }
    return s->memory;
}

void *cuda_scratch(struct compute *c, size_t n_bytes, struct cuda_error *f)
{
    return grow(c, &c->scratch, n_bytes, f);
}

bool cuda_reserve_rounded_rows(struct compute *c, size_t n_bytes, struct cuda_error *f)
{
    return grow(c, &c->rounded_rows, n_bytes, f) != NULL;
}
