/*
 * Where the tests of kernels run: on the emulated device, or, with LAB_GPU, on a real one (`make gpu-tests`). There
 * memory is the host's, pinned, which kernels reach at the same address; what stands behind a piece is looked at when it is freed.
 */
#ifndef TESTS_UNIT_CUDA_LAB_DEVICE_H
#define TESTS_UNIT_CUDA_LAB_DEVICE_H

#include <cuda_runtime_api.h>

#include "tests/emu/simt_order.h"
#include "tests/unit/model/fixture.h"

#ifdef LAB_GPU

enum { LAB_FENCE_BYTES = 256 };

/* Begins at a multiple of 32 bytes. */
static inline void *lab_device_alloc(size_t n_bytes)
{
    void *bytes;

    assert_int_equal(cudaHostAlloc(&bytes, n_bytes + 2 * LAB_FENCE_BYTES, cudaHostAllocDefault),
                     cudaSuccess);
    memset(bytes, 0x5a, n_bytes + 2 * LAB_FENCE_BYTES);
    memcpy(bytes, &n_bytes, sizeof n_bytes);
    return (uint8_t *)bytes + LAB_FENCE_BYTES;
}

static inline void lab_device_free(void *memory)
{
    uint8_t *bytes = (uint8_t *)memory - LAB_FENCE_BYTES;
    size_t n_bytes;

    memcpy(&n_bytes, bytes, sizeof n_bytes);
    for (size_t i = 0; i < LAB_FENCE_BYTES; i++)
        assert_int_equal(((uint8_t *)memory)[n_bytes + i], 0x5a);
    assert_int_equal(cudaFreeHost(bytes), cudaSuccess);
}

static inline void lab_device_order(uint64_t order)
{
    (void)order; /* the device has its own, each time another */
}

static inline cudaError_t lab_device_finish(void)
{
    return cudaDeviceSynchronize();
}

#else

static inline void *lab_device_alloc(size_t n_bytes)
{
    void *bytes;

    assert_int_equal(posix_memalign(&bytes, 32, n_bytes), 0);
    return bytes;
}

static inline void lab_device_free(void *memory)
{
    free(memory);
}

static inline void lab_device_order(uint64_t order)
{
    emu_order(order);
}

/* Without a stream a kernel has run when its launch returns. */
static inline cudaError_t lab_device_finish(void)
{
    return cudaSuccess;
}

#endif
#endif
