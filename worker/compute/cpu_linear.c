/*
 * Linear layers, by kernels of our own (gemm_kernels.h) or, on processors without them, by OpenBLAS. What follows a
 * product (bias, ReLU, mask) is done while its block is in the second-level cache. With kernels of our own
 *
 *     forward    W^T -> tiles | each block of samples: X -> tiles, product, bias and ReLU
 *     backward   W -> tiles   | each block of samples: dy -> tiles, product, mask: dx; db;
 *                             |   dy^T and X -> tiles for dw
 *                             | each range of dw's rows: product
 *
 * | is where all threads meet. Tiles of weights and of blocks stay in the second-level cache while they are used.
 */
#include <string.h>

#include "worker/compute/blas.h"
#include "worker/compute/cpu_epilogue.h"
#include "worker/compute/cpu_internal.h"

/* ---- by kernels of our own ---- */

enum {
    BLOCK_ROWS = 32, /* of a block of samples, that a product covers at a time */
    DW_TILES = 16    /* of k that stay in a cache while all of X's panels go by */
};

struct kernel_job {
    struct compute *c;
    const struct linear *l;
    uint32_t block, dw_rows;
    enum device_act act;
    float *y;
    uint32_t ldy;
    const struct relu_mask *mask;
    const float *dy;
    float *dx, *dw, *db;
    uint16_t *weights, *x_tiles, *dy_tiles;
    float *partials;
};

/* Of a panel with n_k numbers of k. */
static size_t stride_of(const struct kernel_job *j, uint32_t n_k)
{
    return (size_t)cpu_ceil_div(n_k, GEMM_KERNELS_DEPTH) * j->c->tiles->tile;
}

static uint32_t panels_of(uint32_t n)
{
    return cpu_ceil_div(n, GEMM_KERNELS_ROWS);
}

/* n panels with n_k numbers of k, in s. */
static uint16_t *tiles_of(const struct kernel_job *j, const struct cpu_scratch *s, uint32_t n,
                          uint32_t n_k)
{
    return cpu_scratch_of(s, panels_of(n) * stride_of(j, n_k) * sizeof(uint16_t));
}

static struct kernel_job job_of(struct compute *c, const struct linear *l)
{
    struct kernel_job j = { .c = c, .l = l, .block = device_block(l->n) };

    j.x_tiles = tiles_of(&j, &c->x_tiles, l->in, l->n);
    j.dy_tiles = tiles_of(&j, &c->dy_tiles, l->out, l->n);
    j.partials = cpu_scratch_of(&c->db_partials, (size_t)cpu_ceil_div(l->n, j.block) * l->out *
                                                     sizeof *j.partials);
    return j;
}

/* rows [n][width] -> panels, straight, k along the width. */
static void pack_block(const struct kernel_job *j, const float *rows, uint32_t n,
                       uint32_t width, uint16_t *tiles)
{
    for (uint32_t r = 0; r < n; r += GEMM_KERNELS_ROWS, tiles += stride_of(j, width))
        j->c->tiles->rows(&(struct gemm_kernels_source){ rows + (size_t)r * width, width,
                                                         cpu_min(GEMM_KERNELS_ROWS, n - r),
                                                         width },
                          GEMM_KERNELS_STRAIGHT, tiles);
}

/* Rows [r.first, r.end) of x [n][width], samples and k of dw, -> their tiles of each panel. */
static void pack_samples(const struct kernel_job *j, const float *x, uint32_t width,
                         struct cpu_range r, enum gemm_kernels_layout layout, uint16_t *tiles)
{
    for (uint32_t s = r.first; s < r.end; s += GEMM_KERNELS_DEPTH)
        j->c->tiles->pairs(
            &(struct gemm_kernels_source){ x + (size_t)s * width, width,
                                           cpu_min(GEMM_KERNELS_DEPTH, r.end - s), width },
            layout, tiles + (size_t)(s / GEMM_KERNELS_DEPTH) * j->c->tiles->tile,
            stride_of(j, j->l->n));
}

/* 16 outputs. */
static void pack_weights_forward(void *job, uint32_t task, uint32_t thread)
{
    const struct kernel_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, GEMM_KERNELS_ROWS, l->out);

    (void)thread;
    j->c->tiles->rows(&(struct gemm_kernels_source){ l->w + (size_t)r.first * l->in, l->in,
                                                     r.end - r.first, l->in },
                      GEMM_KERNELS_TRANSPOSED, j->weights + task * stride_of(j, l->in));
}

/* 32 outputs, k of dx. */
static void pack_weights_backward(void *job, uint32_t task, uint32_t thread)
{
    const struct kernel_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, GEMM_KERNELS_DEPTH, l->out);

    (void)thread;
    j->c->tiles->pairs(&(struct gemm_kernels_source){ l->w + (size_t)r.first * l->in, l->in,
                                                      r.end - r.first, l->in },
                       GEMM_KERNELS_STRAIGHT, j->weights + (size_t)task * j->c->tiles->tile,
                       stride_of(j, l->out));
}

/* sums [<= 32][ld] of rows `row` .. of the block's tiles times all of the weights; k of both is
 * n_k, the weights' columns n_cols. */
static uint32_t multiply_rows(const struct kernel_job *j, const uint16_t *tiles, uint32_t row,
                              uint32_t n_rows, uint32_t n_k, uint32_t n_cols, float *sums)
{
    const size_t stride = stride_of(j, n_k);
    const uint32_t n = cpu_min(BLOCK_ROWS, n_rows - row), ld = 16 * panels_of(n_cols);

    j->c->tiles->multiply(
        &(struct gemm_kernels_panels){ tiles + row / GEMM_KERNELS_ROWS * stride, stride,
                                       panels_of(n) },
        &(struct gemm_kernels_panels){ j->weights, stride, panels_of(n_cols) },
        cpu_ceil_div(n_k, GEMM_KERNELS_DEPTH), GEMM_KERNELS_SET, sums, ld);
    return ld;
}

static void forward_by_kernel(void *job, uint32_t task, uint32_t thread)
{
    const struct kernel_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->block, l->n);
    const uint32_t n = r.end - r.first;
    uint16_t *tiles = j->c->block_tiles[thread].bytes;
    float *sums = j->c->sums[thread].bytes;

    pack_block(j, l->x + (size_t)r.first * l->in, n, l->in, tiles);
    for (uint32_t row = 0; row < n; row += BLOCK_ROWS) {
        const uint32_t ld = multiply_rows(j, tiles, row, n, l->in, l->out, sums);

        cpu_epilogue_bias(cpu_min(BLOCK_ROWS, n - row), l->out, sums, ld, l->b, j->act,
                          j->y + (size_t)(r.first + row) * j->ldy, j->ldy);
    }
}

static void kernel_forward(struct compute *c, const struct linear *l, enum device_act act,
                           float *y, uint32_t ldy)
{
    struct kernel_job job = job_of(c, l);

    job.weights = tiles_of(&job, &c->weights, l->out, l->in);
    job.act = act;
    job.y = y;
    job.ldy = ldy;
    cpu_run(c, panels_of(l->out), pack_weights_forward, &job);
    cpu_run(c, cpu_ceil_div(l->n, job.block), forward_by_kernel, &job);
}

static void dx_block(const struct kernel_job *j, struct cpu_range r, uint32_t thread)
{
    const struct linear *l = j->l;
    const uint32_t n = r.end - r.first;
    uint16_t *tiles = j->c->block_tiles[thread].bytes;
    float *sums = j->c->sums[thread].bytes;

    pack_block(j, j->dy + (size_t)r.first * l->out, n, l->out, tiles);
    for (uint32_t row = 0; row < n; row += BLOCK_ROWS) {
        const uint32_t ld = multiply_rows(j, tiles, row, n, l->out, l->in, sums);
        const struct relu_mask mask = cpu_mask_at(j->mask, r.first + row);

        cpu_epilogue_mask(cpu_min(BLOCK_ROWS, n - row), l->in, sums, ld, j->mask ? &mask : NULL,
                          j->dx + (size_t)(r.first + row) * l->in, l->in);
    }
}

static void backward_by_kernel(void *job, uint32_t task, uint32_t thread)
{
    const struct kernel_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->block, l->n);

    if (j->dw) {
        cpu_epilogue_sum(r.end - r.first, l->out, j->dy + (size_t)r.first * l->out, l->out,
                         j->partials + (size_t)task * l->out);
        pack_samples(j, j->dy, l->out, r, GEMM_KERNELS_TRANSPOSED, j->dy_tiles);
        pack_samples(j, l->x, l->in, r, GEMM_KERNELS_STRAIGHT, j->x_tiles);
    }
    if (j->dx)
        dx_block(j, r, thread);
}

static void dw_by_kernel(void *job, uint32_t task, uint32_t thread)
{
    const struct kernel_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->dw_rows, l->out);
    const uint32_t n_k = cpu_ceil_div(l->n, GEMM_KERNELS_DEPTH), ld = 16 * panels_of(l->in);
    const size_t stride = stride_of(j, l->n);
    float *sums = j->c->sums[thread].bytes, *dw = j->dw + (size_t)r.first * l->in;

    for (uint32_t k = 0; k < n_k; k += DW_TILES)
        j->c->tiles->multiply(
            &(struct gemm_kernels_panels){ j->dy_tiles + r.first / GEMM_KERNELS_ROWS * stride +
                                               (size_t)k * j->c->tiles->tile,
                                           stride, panels_of(r.end - r.first) },
            &(struct gemm_kernels_panels){ j->x_tiles + (size_t)k * j->c->tiles->tile, stride,
                                           panels_of(l->in) },
            cpu_min(DW_TILES, n_k - k), k ? GEMM_KERNELS_ADD : GEMM_KERNELS_SET, sums, ld);
    for (uint32_t o = r.first; o < r.end; o++, dw += l->in)
        if (n_k)
            memcpy(dw, sums + (size_t)(o - r.first) * ld, l->in * sizeof *dw);
        else
            memset(dw, 0, l->in * sizeof *dw);
}

/* A quarter of them, but no more than `sums` has space for. */
static uint32_t dw_rows_by_kernel(uint32_t out)
{
    const uint32_t quarter = cpu_ceil_div(cpu_ceil_div(out, 4), 32) * 32;

    return cpu_min(quarter, CPU_DW_ROWS);
}

static void kernel_backward(struct compute *c, const struct linear *l, const float *dy,
                            float *dx, const struct relu_mask *mask, float *dw, float *db)
{
    struct kernel_job job = job_of(c, l);
    const uint32_t n_blocks = cpu_ceil_div(l->n, job.block);

    job.weights = tiles_of(&job, &c->weights, l->in, l->out);
    job.dy = dy;
    job.dx = dx;
    job.mask = mask;
    job.dw = dw;
    job.dw_rows = dw_rows_by_kernel(l->out);
    if (dx)
        cpu_run(c, cpu_ceil_div(l->out, GEMM_KERNELS_DEPTH), pack_weights_backward, &job);
    cpu_run(c, n_blocks, backward_by_kernel, &job);
    if (!dw)
        return;
    cpu_run(c, cpu_ceil_div(l->out, job.dw_rows), dw_by_kernel, &job);
    if (db)
        cpu_epilogue_sum(n_blocks, l->out, job.partials, l->out, db);
}

/* ---- by OpenBLAS, a block of the product at a time ---- */

struct blas_forward_job {
    const struct linear *l;
    enum device_act act;
    float *y;
    uint32_t ldy, block;
};

static void forward_by_blas(void *job, uint32_t task, uint32_t thread)
{
    const struct blas_forward_job *f = job;
    const struct linear *l = f->l;
    const struct cpu_range r = cpu_range_of(task, f->block, l->n);
    float *y = f->y + (size_t)r.first * f->ldy;

    (void)thread;
    blas_forward(r.end - r.first, l->in, l->out, l->x + (size_t)r.first * l->in, l->w, y,
                 f->ldy);
    cpu_epilogue_bias(r.end - r.first, l->out, y, f->ldy, l->b, f->act, y, f->ldy);
}

/* Tasks: first those of rows of dw, which take longest, then those of blocks of samples. */
struct blas_backward_job {
    const struct linear *l;
    const struct relu_mask *mask;
    const float *dy;
    float *dx, *dw;
    float *partials; /* db of each block */
    uint32_t block, dw_rows, n_dw_tasks;
};

/* A task for every half of dw, but not so few rows that packing X takes longer than the
 * product, and not so many that large layers leave threads without work. */
static uint32_t dw_rows_by_blas(uint32_t out)
{
    const uint32_t half = (out / 2 + 15) / 16 * 16;

    return half < 128 ? 128 : half > 256 ? 256 : half;
}

static void dw_by_blas(const struct blas_backward_job *j, uint32_t task)
{
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->dw_rows, l->out);

    blas_dw(l->n, l->in, r.end - r.first, j->dy + r.first, l->out, l->x,
            j->dw + (size_t)r.first * l->in);
}

static void backward_by_blas(void *job, uint32_t task, uint32_t thread)
{
    const struct blas_backward_job *j = job;
    const struct linear *l = j->l;
    struct cpu_range r;
    uint32_t n, i;

    (void)thread;
    if (task < j->n_dw_tasks) {
        dw_by_blas(j, task);
        return;
    }
    i = task - j->n_dw_tasks;
    r = cpu_range_of(i, j->block, l->n);
    n = r.end - r.first;
    if (j->dw)
        cpu_epilogue_sum(n, l->out, j->dy + (size_t)r.first * l->out, l->out,
                         j->partials + (size_t)i * l->out);
    if (j->dx) {
        float *dx = j->dx + (size_t)r.first * l->in;
        const struct relu_mask mask = cpu_mask_at(j->mask, r.first);

        blas_dx(n, l->in, l->out, j->dy + (size_t)r.first * l->out, l->w, dx);
        cpu_epilogue_mask(n, l->in, dx, l->in, j->mask ? &mask : NULL, dx, l->in);
    }
}

/* ---- the ops ---- */

void cpu_linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                        float *y, uint32_t ldy)
{
    struct blas_forward_job job = { l, act, y, ldy, device_block(l->n) };

    if (l->out == 1)
        cpu_logit_forward(c, l, act, y, ldy);
    else if (c->tiles)
        kernel_forward(c, l, act, y, ldy);
    else
        cpu_run(c, cpu_ceil_div(l->n, job.block), forward_by_blas, &job);
}

void cpu_linear_backward(struct compute *c, const struct linear *l, const float *dy, float *dx,
                         const struct relu_mask *mask, float *dw, float *db, float *sums)
{
    const uint32_t block = device_block(l->n), n_blocks = cpu_ceil_div(l->n, block);
    struct blas_backward_job job = { .l = l,
                                     .mask = mask,
                                     .dy = dy,
                                     .dx = dx,
                                     .dw = dw,
                                     .block = block,
                                     .dw_rows = dw_rows_by_blas(l->out) };

    (void)sums; /* this device does not offer them, nor rows with gaps */
    if (l->out == 1) {
        cpu_logit_backward(c, l, dy, dx, mask, dw, db);
        return;
    }
    if (c->tiles) {
        kernel_backward(c, l, dy, dx, mask, dw, db);
        return;
    }
    job.partials =
        cpu_scratch_of(&c->db_partials, (size_t)n_blocks * l->out * sizeof *job.partials);
    if (dw)
        job.n_dw_tasks = cpu_ceil_div(l->out, job.dw_rows);
    cpu_run(c, job.n_dw_tasks + n_blocks, backward_by_blas, &job);
    if (db)
        cpu_epilogue_sum(n_blocks, l->out, job.partials, l->out, db);
}
