#include "worker/cuda/scratch.h"

/* The old one goes first: both at once may be more than there is. */
cudaError_t scratch_reserve(struct scratch *s, size_t n_bytes)
{
    cudaError_t e;

    if (n_bytes <= s->n_bytes)
        return cudaSuccess;
    scratch_free(s);
    e = cudaMalloc(&s->memory, n_bytes);
    if (e == cudaSuccess)
        s->n_bytes = n_bytes;
    else
        s->memory = NULL;
    return e;
}

void scratch_free(struct scratch *s)
{
    if (s->memory)
        (void)cudaFree(s->memory);
    *s = (struct scratch){ 0 };
}
