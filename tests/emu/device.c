/* The emulated devices: what they are, its memory, copies. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/memory.h"
#include "tests/emu/rt.h"

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
      "CUDA driver version is insufficient for CUDA runtime version" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
      "invalid resource handle" },
    { cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
      "an illegal memory access was encountered" },
};

const char *cudaGetErrorName(cudaError_t e)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].e == e)
            return errors[i].name;
    return "cudaErrorEmulated";
}

const char *cudaGetErrorString(cudaError_t e)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].e == e)
            return errors[i].text;
    return "an emulated error";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = EMU_RT_DEVICES;
    return emu_rt_is_faulty() ? cudaErrorInsufficientDriver : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    if (device < 0 || device >= EMU_RT_DEVICES)
        return cudaErrorInvalidDevice;
    if (emu_rt_is_faulty())
        return cudaErrorNoDevice;
    *prop = (struct cudaDeviceProp){ "emulated device", (size_t)1 << 30, 8, 0, 1 };
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= EMU_RT_DEVICES)
        return cudaErrorInvalidDevice;
    if (!emu_rt_has_device(device) && emu_rt_is_faulty())
        return cudaErrorNoDevice;
    emu_rt_set_device(device);
    (void)emu_rt_use_device(); /* from CUDA 12 on there is a context then */
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

static cudaError_t alloc(enum emu_memory_side side, void **memory, size_t n_bytes)
{
    const cudaError_t forbidden = emu_rt_forbid_in_capture();
    const int device = emu_rt_use_device();

    if (forbidden)
        return forbidden;
    if (emu_rt_is_faulty())
        return cudaErrorMemoryAllocation;
    *memory = emu_memory_new(side, device, n_bytes);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t n_bytes)
{
    return alloc(EMU_MEMORY_DEVICE, memory, n_bytes);
}

/* CUDA waits for the device here; nobody should need that. */
cudaError_t cudaFree(void *memory)
{
    (void)emu_rt_use_device();
    if (memory)
        emu_memory_free(EMU_MEMORY_DEVICE, memory);
    return emu_rt_forbid_in_capture();
}

cudaError_t cudaHostAlloc(void **memory, size_t n_bytes, unsigned flags)
{
    (void)flags;
    return alloc(EMU_MEMORY_HOST, memory, n_bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    (void)emu_rt_use_device();
    if (memory)
        emu_memory_free(EMU_MEMORY_HOST, memory);
    return emu_rt_forbid_in_capture();
}

struct move {
    void *to;
    const void *from; /* NULL: all are `value` */
    size_t n_bytes;
    int value;
};

static void run_move(void *arg)
{
    const struct move *m = arg;

    if (m->from)
        memcpy(m->to, m->from, m->n_bytes);
    else
        memset(m->to, m->value, m->n_bytes);
}

static cudaError_t enqueue_move(cudaStream_t s, struct move move)
{
    struct move *m = malloc(sizeof *m);

    assert(m);
    *m = move;
    return emu_stream_launch(s, run_move, free, m);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t n_bytes, cudaStream_t s)
{
    if (!emu_memory_is_device(emu_rt_use_device(), memory, n_bytes))
        return cudaErrorInvalidValue;
    return enqueue_move(s, (struct move){ memory, NULL, n_bytes, value });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes,
                            enum cudaMemcpyKind kind, cudaStream_t s)
{
    const bool to_device = kind != cudaMemcpyDeviceToHost,
               from_device = kind != cudaMemcpyHostToDevice;
    const int device = emu_rt_use_device();

    if (to_device != emu_memory_touches_device(to, n_bytes) ||
        from_device != emu_memory_touches_device(from, n_bytes) ||
        (to_device && !emu_memory_is_device(device, to, n_bytes)) ||
        (from_device && !emu_memory_is_device(device, from, n_bytes)))
        return cudaErrorInvalidValue;
    return enqueue_move(s, (struct move){ to, from, n_bytes, 0 });
}
