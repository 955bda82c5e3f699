#include "worker/cuda/device_cuda.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/cuda/cuda.h"

/* What NVIDIA names for products: more where they are made by several multiprocessors together. */
static size_t workspace_bytes(int major)
{
    return (size_t)(major >= 9 ? 32 : 4) << 20;
}

static void free_all(struct compute *c)
{
    cuda_synchronize(c);
    graphs_clear(&c->graphs);
    gemm_free(c->products);
    scratch_free(&c->scratch);
    scratch_free(&c->rounded_rows);
    for (uint32_t s = 0; s < DEVICE_BUFFER_SETS; s++)
        for (int i = 0; i < CUDA_STREAMS; i++)
            if (c->sets[s].done[i])
                (void)cudaEventDestroy(c->sets[s].done[i]);
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (c->streams[i])
            (void)cudaStreamDestroy(c->streams[i]);
    if (c->record)
        (void)cudaStreamDestroy(c->record);
    free(c);
}

static void cuda_close(struct compute *c)
{
    if (!c)
        return;
    cuda_try_device(c->device);
    free_all(c);
}

static bool make_streams(struct compute *c, struct cuda_error *f)
{
    bool made = true;

    for (int i = 0; i < CUDA_STREAMS && made; i++)
        made = cuda_error_check(
            f, "stream", cudaStreamCreateWithFlags(&c->streams[i], cudaStreamNonBlocking));
    made =
        made && cuda_error_check(f, "stream",
                                 cudaStreamCreateWithFlags(&c->record, cudaStreamNonBlocking));
    for (uint32_t s = 0; s < DEVICE_BUFFER_SETS && made; s++)
        for (int i = 0; i < CUDA_STREAMS && made; i++)
            made = cuda_error_check(
                f, "event",
                cudaEventCreateWithFlags(&c->sets[s].done[i], cudaEventDisableTiming));
    return made;
}

static void describe(struct compute *c, const struct cudaDeviceProp *gpu,
                     enum device_products how)
{
    const size_t v = cublasLtGetVersion();

    snprintf(c->text, sizeof c->text,
             "cuda:%d: %.80s, %zu GiB, %s products by cublasLt %zu.%zu.%zu", c->device,
             gpu->name, gpu->totalGlobalMem >> 30,
             how == DEVICE_TF32   ? "TF32"
             : how == DEVICE_BF16 ? "bf16"
                                  : "fp32",
             v / 10000, v / 100 % 100, v % 100);
}

static bool choose(const struct device_place *place, int n, int *ret_device,
                   struct cuda_error *f)
{
    const uint32_t n_devices = (uint32_t)n;

    *ret_device = (int)(place->number % n_devices);
    if (place->wraps || place->number < n_devices)
        return true;
    if (n == 1)
        snprintf(f->text, sizeof f->text,
                 "cuda:%u is not there: the driver has one device, cuda:0", place->number);
    else
        snprintf(f->text, sizeof f->text,
                 "cuda:%u is not there: the driver has %d devices, cuda:0 to cuda:%d",
                 place->number, n, n - 1);
    return false;
}

static bool find_gpu(struct compute *c, const struct device_place *place,
                     struct cudaDeviceProp *gpu, struct cuda_error *f)
{
    int n = 0;

    if (!cuda_error_check(f, "looking for a GPU", cudaGetDeviceCount(&n)) ||
        !cuda_error_check(f, "looking for a GPU", n ? cudaSuccess : cudaErrorNoDevice) ||
        !choose(place, n, &c->device, f) || !cuda_use_device(c->device, f) ||
        !cuda_error_check(f, "asking a GPU", cudaGetDeviceProperties(gpu, c->device)))
        return false;
    if (gpu->major >= 8)
        return true;
    snprintf(f->text, sizeof f->text,
             "cuda:%d: %.80s has compute capability %d.%d, expected 8.0 or later", c->device,
             gpu->name, gpu->major, gpu->minor);
    return false;
}

static bool make(struct compute *c, const struct device_options *o, struct cuda_error *f)
{
    const enum device_products how = o->products;
    struct cudaDeviceProp gpu;

    if (!find_gpu(c, &o->place, &gpu, f) || !make_streams(c, f))
        return false;
    describe(c, &gpu, how);
    c->math = how == DEVICE_FP32 || how == DEVICE_BLAS ? KERNELS_FP32 : KERNELS_TF32;
    c->products = gemm_new(how, workspace_bytes(gpu.major), f);
    return c->products;
}

static int cuda_open(const struct device_options *o, struct compute **ret_c, struct err *err)
{
    struct compute *c = memory_alloc(sizeof *c);
    struct cuda_error f = { 0 };

    if (!make(c, o, &f)) {
        free_all(c);
        return err_set(err, PS_EDEVICE, "%s", f.text);
    }
    *ret_c = c;
    return 0;
}

static uint32_t cuda_count(void)
{
    int n = 0;

    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? (uint32_t)n : 0;
}

static const char *cuda_describe(const struct compute *c)
{
    return c->text;
}

/* Memory */

static int cuda_reserve(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out)
{
    struct cuda_error f = { 0 };

    if (!cuda_use_device(c->device, &f))
        return -ENOMEM;
    cuda_release_graphs(c);
    if (cuda_error_check(&f, "reserve", gemm_reserve(c->products, n_max, in, out)) &&
        cuda_scratch(c, kernels_sums_bytes(n_max, in > out ? in : out), &f))
        return 0;
    return -ENOMEM;
}

static void *cuda_memory_alloc(struct compute *c, size_t n_bytes)
{
    void *memory = NULL;

    cuda_try_device(c->device);
    return cudaMalloc(&memory, n_bytes) == cudaSuccess ? memory : NULL;
}

static void *cuda_memory_alloc_zeroed(struct compute *c, size_t n_bytes)
{
    const cudaStream_t stream = c->streams[CUDA_COMPUTE];
    void *memory = cuda_memory_alloc(c, n_bytes);

    if (!memory)
        return NULL;
    if (cudaMemsetAsync(memory, 0, n_bytes, stream) == cudaSuccess &&
        cudaStreamSynchronize(stream) == cudaSuccess)
        return memory;
    (void)cudaFree(memory);
    return NULL;
}

static void cuda_memory_free(struct compute *c, void *memory, size_t n_bytes)
{
    (void)n_bytes;
    cuda_try_device(c->device);
    (void)cudaFree(memory);
}

static void *cuda_host_alloc(struct compute *c, size_t n_bytes)
{
    void *memory = NULL;

    cuda_try_device(c->device);
    if (cudaHostAlloc(&memory, n_bytes, cudaHostAllocDefault) != cudaSuccess)
        return NULL;
    return memset(memory, 0, n_bytes);
}

static void cuda_host_free(struct compute *c, void *memory, size_t n_bytes)
{
    (void)n_bytes;
    cuda_try_device(c->device);
    (void)cudaFreeHost(memory);
}

/* Buffer sets */

/* A mark behind what the buffer set has on stream i up to here. */
static bool mark(struct compute *c, struct cuda_buffer_set *s, enum cuda_stream i)
{
    return cuda_error_check(&s->fault, "event", cudaEventRecord(s->done[i], c->streams[i]));
}

/* Stream `then` goes on after what the buffer set has on stream `first`. */
static void follow(struct compute *c, struct cuda_buffer_set *s, enum cuda_stream first,
                   enum cuda_stream then)
{
    if (!s->queued[first])
        return;
    s->queued[first] = false;
    (void)cuda_error_check(&s->fault, "event",
                           cudaStreamWaitEvent(c->streams[then], s->done[first], 0));
}

static void copy_in(struct compute *c, uint32_t set, void *device, const void *from,
                    size_t n_bytes, enum cudaMemcpyKind kind)
{
    struct cuda_buffer_set *s = &c->sets[set];

    if (!n_bytes)
        return;
    (void)cuda_use_device(c->device, &s->fault);
    s->queued[CUDA_IN] = true;
    (void)cuda_error_check(&s->fault, "copy to the device",
                           cudaMemcpyAsync(device, from, n_bytes, kind, c->streams[CUDA_IN]));
}

static void cuda_upload(struct compute *c, uint32_t set, void *device, const void *host,
                        size_t n_bytes)
{
    copy_in(c, set, device, host, n_bytes, cudaMemcpyHostToDevice);
}

/* All that writes `from` is on this stream. */
static void cuda_upload_from_device(struct compute *c, uint32_t set, void *device,
                                    const void *from, size_t n_bytes)
{
    copy_in(c, set, device, from, n_bytes, cudaMemcpyDeviceToDevice);
}

/* Pinned memory has one address for host and device (unified addressing). */
static void cuda_upload_rows(struct compute *c, uint32_t set, const struct row_upload *u)
{
    struct cuda_buffer_set *s = &c->sets[set];

    (void)cuda_use_device(c->device, &s->fault);
    s->queued[CUDA_IN] = true;
    (void)cuda_error_check(&s->fault, "rows to the device",
                           kernels_upload_rows(c->streams[CUDA_IN], u));
}

static void cuda_decode_rows(struct compute *c, uint32_t set, const struct row_decode *d)
{
    struct cuda_buffer_set *s = &c->sets[set];

    (void)cuda_use_device(c->device, &s->fault);
    s->queued[CUDA_IN] = true;
    (void)cuda_error_check(&s->fault, "rows to be decoded",
                           kernels_decode_rows(c->streams[CUDA_IN], d));
}

/* Marks the end of the unmarked copies out, before the copies of `next` follow. A later mark would stand behind the
 * copies of `next`, too, and a wait for it would wait for all steps under way. */
static void mark_out(struct compute *c, struct cuda_buffer_set *next)
{
    if (c->out && c->out != next)
        (void)mark(c, c->out, CUDA_OUT);
    c->out = next;
}

static void cuda_download(struct compute *c, uint32_t set, void *host, const void *device,
                          size_t n_bytes)
{
    struct cuda_buffer_set *s = &c->sets[set];

    if (!n_bytes)
        return;
    (void)cuda_use_device(c->device, &s->fault);
    mark_out(c, s);
    follow(c, s, CUDA_COMPUTE, CUDA_OUT);
    s->queued[CUDA_OUT] = true;
    (void)cuda_error_check(
        &s->fault, "copy from the device",
        cudaMemcpyAsync(host, device, n_bytes, cudaMemcpyDeviceToHost, c->streams[CUDA_OUT]));
}

static void begin_recording(struct compute *c, struct graph *g)
{
    c->record_fault = (struct cuda_error){ 0 };
    if (cudaStreamBeginCapture(c->record, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        g->is_refused = true;
        return;
    }
    c->recording = g;
    c->targets[c->n_targets++] = (struct cuda_target){ c->record, &c->record_fault };
}

static bool cuda_begin(struct compute *c, uint32_t set, uint64_t key)
{
    const cudaStream_t stream = c->streams[CUDA_COMPUTE];
    struct cuda_buffer_set *s = &c->sets[set];
    struct graph *g = key ? graphs_find(&c->graphs, set, key) : NULL;

    assert(!c->n_targets);
    (void)cuda_use_device(c->device, &s->fault);
    if (s->queued[CUDA_IN])
        (void)mark(c, s, CUDA_IN);
    follow(c, s, CUDA_IN, CUDA_COMPUTE);
    if (g && g->exec) {
        (void)cuda_error_check(&s->fault, "graph", cudaGraphLaunch(g->exec, stream));
        return true;
    }
    c->targets[0] = (struct cuda_target){ stream, &s->fault };
    c->n_targets = 1;
    if (g && g->is_known && !g->is_refused)
        begin_recording(c, g);
    if (g)
        g->is_known = true;
    return false;
}

static void cuda_end(struct compute *c, uint32_t set)
{
    struct cuda_buffer_set *s = &c->sets[set];

    if (c->recording)
        graphs_end_capture(c->recording, c->record, cuda_error_is_set(&c->record_fault));
    c->recording = NULL;
    c->n_targets = 0;
    s->queued[CUDA_COMPUTE] = mark(c, s, CUDA_COMPUTE);
}

static int cuda_wait(struct compute *c, uint32_t set)
{
    struct cuda_buffer_set *s = &c->sets[set];

    (void)cuda_use_device(c->device, &s->fault);
    if (c->out == s)
        mark_out(c, NULL);
    if (s->queued[CUDA_IN]) /* no ops have followed */
        (void)mark(c, s, CUDA_IN);
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (s->queued[i]) {
            s->queued[i] = false;
            (void)cuda_error_check(&s->fault, "wait", cudaEventSynchronize(s->done[i]));
        }
    if (!cuda_error_is_set(&s->fault))
        return 0;
    cuda_synchronize(c); /* also what has lost its mark */
    c->failure = s->fault;
    s->fault = (struct cuda_error){ 0 };
    return PS_EDEVICE;
}

static const char *cuda_failure(const struct compute *c)
{
    return c->failure.text;
}

const struct device_ops device_cuda = {
    .name = "cuda",
    .wants_transpose = true,
    .makes_sums = true,
    .row_floats = 8, /* as rows of operands of any kind are padded (gemm.c) */
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .reserve = cuda_reserve,
    .memory_alloc = cuda_memory_alloc,
    .memory_alloc_zeroed = cuda_memory_alloc_zeroed,
    .memory_free = cuda_memory_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .upload_from_device = cuda_upload_from_device,
    .upload_rows = cuda_upload_rows,
    .decode_rows = cuda_decode_rows,
    .dedup_new = cuda_dedup_new,
    .dedup = cuda_dedup_run,
    .dedup_free = cuda_dedup_free,
    .begin = cuda_begin,
    .end = cuda_end,
    .wait = cuda_wait,
    .failure = cuda_failure,
    .linear_forward = cuda_ops_linear_forward,
    .linear_backward = cuda_ops_linear_backward,
    .norm_batch = cuda_ops_norm_batch,
    .norm_running = cuda_ops_norm_running,
    .norm_apply = cuda_ops_norm_apply,
    .norm_backward = cuda_ops_norm_backward,
    .dropout = cuda_ops_dropout,
    .bag_sum = cuda_ops_bag_sum,
    .bag_grad = cuda_ops_bag_grad,
    .bag_mean = cuda_ops_bag_mean,
    .transpose_bags = cuda_ops_transpose_bags,
    .wide_sum = cuda_ops_wide_sum,
    .wide_grad = cuda_ops_wide_grad,
    .project_forward = cuda_ops_project_forward,
    .project_backward = cuda_ops_project_backward,
    .interact_forward = cuda_ops_interact_forward,
    .interact_backward = cuda_ops_interact_backward,
    .interact_bags_forward = cuda_ops_interact_bags_forward,
    .interact_bags_backward = cuda_ops_interact_bags_backward,
    .pair_sum_forward = cuda_ops_pair_sum_forward,
    .pair_sum_backward = cuda_ops_pair_sum_backward,
    .cross_forward = cuda_ops_cross_forward,
    .cross_backward = cuda_ops_cross_backward,
    .prob = cuda_ops_prob,
    .loss = cuda_ops_loss,
    .add_rows = cuda_ops_add_rows,
    .copy_rows = cuda_ops_copy_rows,
    .number_hats = cuda_ops_number_hats,
    .axpy = cuda_ops_axpy,
    .encode = cuda_ops_encode,
    .count = cuda_count,
    .update_rows = cuda_ops_update_rows,
    .bf16 = &cuda_bf16_ops,
};
