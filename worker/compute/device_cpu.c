#include "worker/compute/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"
#include "worker/compute/blas.h"
#include "worker/compute/cpu_internal.h"
#include "worker/compute/gemm_kernels.h"

static void cpu_scratch_free(struct cpu_scratch *s)
{
    memory_unmap(s->bytes, s->n_bytes);
    *s = (struct cpu_scratch){ 0 };
}

static int cpu_scratch_reserve(struct cpu_scratch *s, size_t n_bytes)
{
    void *bytes;

    if (n_bytes <= s->n_bytes)
        return 0;
    bytes = memory_map(n_bytes);
    if (!bytes)
        return -ENOMEM;
    cpu_scratch_free(s);
    *s = (struct cpu_scratch){ bytes, n_bytes };
    return 0;
}

/* Why products are not made as asked, or "". */
static const char *lack(const struct compute *c, const struct device_options *o)
{
    if (o->products == DEVICE_TF32)
        return "tf32 is for GPUs: ";
    if (o->products == DEVICE_BF16 && !(c->tiles && c->tiles->products == DEVICE_BF16))
        return "no bf16 without AVX512-BF16: ";
    return "";
}

static void describe(struct compute *c, const struct device_options *o, const char *openblas)
{
    char products[64];

    if (c->tiles)
        snprintf(products, sizeof products, "%s products by %s",
                 c->tiles->products == DEVICE_BF16 ? "bf16" : "fp32", c->tiles->name);
    else
        snprintf(products, sizeof products, "fp32 products by OpenBLAS with %s kernels",
                 openblas);
    snprintf(c->text, sizeof c->text, "cpu: %s%s, %u thread%s", lack(c, o), products,
             o->n_threads, NUMBER_PLURAL(o->n_threads));
}

static void cpu_close(struct compute *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; c->pool && i < thread_pool_n_threads(c->pool); i++) {
        cpu_scratch_free(&c->block_tiles[i]);
        cpu_scratch_free(&c->sums[i]);
    }
    cpu_scratch_free(&c->db_partials);
    cpu_scratch_free(&c->loss_partials);
    cpu_scratch_free(&c->weights);
    cpu_scratch_free(&c->x_tiles);
    cpu_scratch_free(&c->dy_tiles);
    free(c->block_tiles);
    free(c->sums);
    thread_pool_free(c->pool);
    free(c);
}

static int cpu_open(const struct device_options *o, struct compute **ret_c, struct err *err)
{
    struct compute *c;
    int status;

    if (o->n_threads < 1 || o->n_threads > DEVICE_THREADS_MAX)
        return err_set(err, PS_ESETTING, "compute: threads is %u, expected 1 to %u",
                       o->n_threads, DEVICE_THREADS_MAX);
    c = memory_alloc(sizeof *c);
    c->tiles = gemm_kernels_best(o->products);
    if (!c->tiles && o->products != DEVICE_BLAS)
        c->tiles = gemm_kernels_best(DEVICE_FP32);
    describe(c, o, blas_pin());
    c->block_tiles = memory_alloc(o->n_threads * sizeof *c->block_tiles);
    c->sums = memory_alloc(o->n_threads * sizeof *c->sums);
    status = thread_pool_new(o->n_threads, &c->pool);
    if (status) {
        cpu_close(c);
        return err_set(err, status, "compute: cannot start %u threads: %s", o->n_threads,
                       status_text(status));
    }
    *ret_c = c;
    return 0;
}

static const char *cpu_describe(const struct compute *c)
{
    return c->text;
}

static size_t up_to(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static int reserve_tiles(struct compute *c, size_t n_max, size_t in, size_t out)
{
    const size_t wide = up_to(in > out ? in : out, 32), block = 256;
    const size_t number = c->tiles->tile / GEMM_KERNELS_BF16 * sizeof(uint16_t);
    int status = cpu_scratch_reserve(&c->weights, up_to(in, 32) * up_to(out, 32) * number);

    if (!status)
        status = cpu_scratch_reserve(&c->x_tiles, up_to(n_max, 32) * up_to(in, 16) * number);
    if (!status)
        status = cpu_scratch_reserve(&c->dy_tiles, up_to(n_max, 32) * up_to(out, 16) * number);
    for (uint32_t i = 0; i < thread_pool_n_threads(c->pool) && !status; i++) {
        status = cpu_scratch_reserve(&c->block_tiles[i], block * wide * number);
        if (!status)
            status = cpu_scratch_reserve(&c->sums[i], CPU_DW_ROWS * wide * sizeof(float));
    }
    return status;
}

/* Of any n <= n_max there are 8 blocks, or as many as of n_max. */
static int cpu_reserve(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out)
{
    const size_t n_sums = out == 1 ? (size_t)in + 1 : out;
    const size_t n_blocks = n_max > 2048 ? cpu_ceil_div(n_max, 256) : 8;
    int status = cpu_scratch_reserve(&c->db_partials, n_blocks * n_sums * sizeof(float));

    if (!status)
        status = cpu_scratch_reserve(&c->loss_partials, n_blocks * sizeof(double));
    return status || !c->tiles ? status : reserve_tiles(c, n_max, in, out);
}

/* Zeroed, as all pages of the system are. */
static void *cpu_memory_alloc(struct compute *c, size_t n_bytes)
{
    (void)c;
    return memory_map(n_bytes);
}

static void cpu_memory_free(struct compute *c, void *memory, size_t n_bytes)
{
    (void)c;
    memory_unmap(memory, n_bytes);
}

static void cpu_upload(struct compute *c, uint32_t set, void *device, const void *host,
                       size_t n_bytes)
{
    (void)c, (void)set;
    if (device != host && n_bytes)
        memcpy(device, host, n_bytes);
}

static void cpu_download(struct compute *c, uint32_t set, void *host, const void *device,
                         size_t n_bytes)
{
    cpu_upload(c, set, host, device, n_bytes);
}

static bool cpu_begin(struct compute *c, uint32_t set, uint64_t key)
{
    (void)c, (void)set, (void)key;
    return false;
}

static void cpu_end(struct compute *c, uint32_t set)
{
    (void)c, (void)set;
}

/* Every op is done when it returns, and none can fail. */
static int cpu_wait(struct compute *c, uint32_t set)
{
    (void)c, (void)set;
    return 0;
}

static const char *cpu_failure(const struct compute *c)
{
    (void)c;
    return "";
}

const struct device_ops device_cpu = {
    .name = "cpu",
    .shares_memory = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .reserve = cpu_reserve,
    .memory_alloc = cpu_memory_alloc,
    .memory_alloc_zeroed = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .host_alloc = cpu_memory_alloc,
    .host_free = cpu_memory_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .upload_from_device = cpu_upload,
    .upload_rows = cpu_rows_upload,
    .decode_rows = cpu_rows_decode,
    .begin = cpu_begin,
    .end = cpu_end,
    .wait = cpu_wait,
    .failure = cpu_failure,
    .linear_forward = cpu_linear_forward,
    .linear_backward = cpu_linear_backward,
    .norm_batch = cpu_rows_norm_batch,
    .norm_running = cpu_rows_norm_running,
    .norm_apply = cpu_rows_norm_apply,
    .norm_backward = cpu_rows_norm_backward,
    .dropout = cpu_rows_dropout,
    .bag_sum = cpu_bag_sum,
    .bag_grad = cpu_bag_grad,
    .bag_mean = cpu_bag_mean,
    .wide_sum = cpu_bag_wide_sum,
    .wide_grad = cpu_bag_wide_grad,
    .interact_forward = cpu_interact_forward,
    .interact_backward = cpu_interact_backward,
    .pair_sum_forward = cpu_pair_sum_forward,
    .pair_sum_backward = cpu_pair_sum_backward,
    .cross_forward = cpu_rows_cross_forward,
    .cross_backward = cpu_rows_cross_backward,
    .prob = cpu_logit_prob,
    .loss = cpu_logit_loss,
    .add_rows = cpu_rows_add,
    .copy_rows = cpu_rows_copy,
    .number_hats = cpu_rows_number_hats,
    .axpy = cpu_rows_axpy,
    .encode = cpu_rows_encode,
    .update_rows = cpu_update_rows,
};
