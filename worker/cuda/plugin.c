/* The one symbol of psworker_cuda.so, which worker/cuda_plugin.c looks up. */
#include "worker/cuda/device_cuda.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const struct device_ops *psworker_cuda(uint32_t abi);

/* The ops, or NULL: the worker was built against another device.h. */
const struct device_ops *psworker_cuda(uint32_t abi)
{
    return abi == DEVICE_ABI ? &device_cuda : NULL;
}
