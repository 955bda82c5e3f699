/* The one door of psworker_cuda.so; worker/plugin.c knocks. */
#include "worker/cuda/compute_cuda.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const struct compute_ops *psworker_cuda(uint32_t abi);

/* The ops, or NULL: the worker was built against another compute.h. */
const struct compute_ops *psworker_cuda(uint32_t abi)
{
    return abi == COMPUTE_ABI ? &compute_cuda : NULL;
}
