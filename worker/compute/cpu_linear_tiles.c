/*
 * Linear layers with kernels of our own (cpu_tiles.h).
 *
 *     forward    W^T -> tiles | each block of samples: X -> tiles, product, bias and ReLU
 *     backward   W -> tiles   | each block of samples: dy -> tiles, product, mask: dx; db;
 *                             |   dy^T and X -> tiles for dw
 *                             | each part of dw's rows: product
 *
 * | is where all threads meet. Tiles of weights and of blocks stay in the second-level cache
 * while they are used.
 */
#include <string.h>

#include "worker/compute/cpu.h"
#include "worker/compute/cpu_epilogue.h"

enum {
    BLOCK_ROWS = 32, /* of a block of samples, that a product covers at a time */
    DW_TILES = 16    /* of k that stay in a cache while all of X's panels go by */
};

struct job {
    struct compute *c;
    const struct linear *l;
    uint32_t block, dw_rows;
    enum compute_act act;
    float *y;
    uint32_t ldy;
    const struct relu_mask *mask;
    const float *dy;
    float *dx, *dw, *db;
    uint16_t *weights, *x_tiles, *dy_tiles;
    float *parts;
};

/* Of a panel with n_k numbers of k. */
static size_t stride_of(const struct job *j, uint32_t n_k)
{
    return (size_t)cpu_ceil_div(n_k, CPU_TILES_DEPTH) * j->c->tiles->tile;
}

static uint32_t panels_of(uint32_t n)
{
    return cpu_ceil_div(n, CPU_TILES_ROWS);
}

/* n panels with n_k numbers of k, in s. */
static uint16_t *tiles_of(const struct job *j, const struct cpu_scratch *s, uint32_t n,
                          uint32_t n_k)
{
    return cpu_scratch_of(s, panels_of(n) * stride_of(j, n_k) * sizeof(uint16_t));
}

static struct job job_of(struct compute *c, const struct linear *l)
{
    struct job j = { .c = c, .l = l, .block = compute_block(l->n) };

    j.x_tiles = tiles_of(&j, &c->x_tiles, l->in, l->n);
    j.dy_tiles = tiles_of(&j, &c->dy_tiles, l->out, l->n);
    j.parts = cpu_scratch_of(&c->db_parts,
                             (size_t)cpu_ceil_div(l->n, j.block) * l->out * sizeof *j.parts);
    return j;
}

/* rows [n][width] -> panels, straight, k along the width. */
static void pack_block(const struct job *j, const float *rows, uint32_t n, uint32_t width,
                       uint16_t *tiles)
{
    for (uint32_t r = 0; r < n; r += CPU_TILES_ROWS, tiles += stride_of(j, width))
        j->c->tiles->rows(&(struct cpu_tiles_source){ rows + (size_t)r * width, width,
                                                      cpu_min(CPU_TILES_ROWS, n - r), width },
                          CPU_TILES_STRAIGHT, tiles);
}

/* Rows [r.first, r.end) of x [n][width], samples and k of dw, -> their tiles of each panel. */
static void pack_samples(const struct job *j, const float *x, uint32_t width,
                         struct cpu_range r, enum cpu_tiles_turn turn, uint16_t *tiles)
{
    for (uint32_t s = r.first; s < r.end; s += CPU_TILES_DEPTH)
        j->c->tiles->pairs(&(struct cpu_tiles_source){ x + (size_t)s * width, width,
                                                       cpu_min(CPU_TILES_DEPTH, r.end - s),
                                                       width },
                           turn, tiles + (size_t)(s / CPU_TILES_DEPTH) * j->c->tiles->tile,
                           stride_of(j, j->l->n));
}

/* 16 outputs. */
static void pack_weights_forward(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, CPU_TILES_ROWS, l->out);

    (void)thread;
    j->c->tiles->rows(&(struct cpu_tiles_source){ l->w + (size_t)r.first * l->in, l->in,
                                                  r.end - r.first, l->in },
                      CPU_TILES_TURNED, j->weights + task * stride_of(j, l->in));
}

/* 32 outputs, k of dx. */
static void pack_weights_backward(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, CPU_TILES_DEPTH, l->out);

    (void)thread;
    j->c->tiles->pairs(&(struct cpu_tiles_source){ l->w + (size_t)r.first * l->in, l->in,
                                                   r.end - r.first, l->in },
                       CPU_TILES_STRAIGHT, j->weights + (size_t)task * j->c->tiles->tile,
                       stride_of(j, l->out));
}

/* sums [<= 32][ld] of rows `row` .. of the block's tiles times all of the weights; k of both is
 * n_k, the weights' columns n_cols. */
static uint32_t multiply_rows(const struct job *j, const uint16_t *tiles, uint32_t row,
                              uint32_t n_rows, uint32_t n_k, uint32_t n_cols, float *sums)
{
    const size_t stride = stride_of(j, n_k);
    const uint32_t n = cpu_min(BLOCK_ROWS, n_rows - row), ld = 16 * panels_of(n_cols);

    j->c->tiles->multiply(&(struct cpu_tiles_panels){ tiles + row / CPU_TILES_ROWS * stride,
                                                      stride, panels_of(n) },
                          &(struct cpu_tiles_panels){ j->weights, stride, panels_of(n_cols) },
                          cpu_ceil_div(n_k, CPU_TILES_DEPTH), CPU_TILES_SET, sums, ld);
    return ld;
}

static void forward_block(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
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

void cpu_linear_tiles_forward(struct compute *c, const struct linear *l, enum compute_act act,
                              float *y, uint32_t ldy)
{
    struct job job = job_of(c, l);

    job.weights = tiles_of(&job, &c->weights, l->out, l->in);
    job.act = act;
    job.y = y;
    job.ldy = ldy;
    cpu_run(c, panels_of(l->out), pack_weights_forward, &job);
    cpu_run(c, cpu_ceil_div(l->n, job.block), forward_block, &job);
}

static void dx_block(const struct job *j, struct cpu_range r, uint32_t thread)
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

static void backward_block(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->block, l->n);

    if (j->dw) {
        cpu_epilogue_sum(r.end - r.first, l->out, j->dy + (size_t)r.first * l->out, l->out,
                         j->parts + (size_t)task * l->out);
        pack_samples(j, j->dy, l->out, r, CPU_TILES_TURNED, j->dy_tiles);
        pack_samples(j, l->x, l->in, r, CPU_TILES_STRAIGHT, j->x_tiles);
    }
    if (j->dx)
        dx_block(j, r, thread);
}

static void dw_rows(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->dw_rows, l->out);
    const uint32_t n_k = cpu_ceil_div(l->n, CPU_TILES_DEPTH), ld = 16 * panels_of(l->in);
    const size_t stride = stride_of(j, l->n);
    float *sums = j->c->sums[thread].bytes, *dw = j->dw + (size_t)r.first * l->in;

    for (uint32_t k = 0; k < n_k; k += DW_TILES)
        j->c->tiles->multiply(
            &(struct cpu_tiles_panels){ j->dy_tiles + r.first / CPU_TILES_ROWS * stride +
                                            (size_t)k * j->c->tiles->tile,
                                        stride, panels_of(r.end - r.first) },
            &(struct cpu_tiles_panels){ j->x_tiles + (size_t)k * j->c->tiles->tile, stride,
                                        panels_of(l->in) },
            cpu_min(DW_TILES, n_k - k), k ? CPU_TILES_ADD : CPU_TILES_SET, sums, ld);
    for (uint32_t o = r.first; o < r.end; o++, dw += l->in)
        if (n_k)
            memcpy(dw, sums + (size_t)(o - r.first) * ld, l->in * sizeof *dw);
        else
            memset(dw, 0, l->in * sizeof *dw);
}

/* A quarter of them, but no more than `sums` has room for. */
static uint32_t dw_rows_of(uint32_t out)
{
    const uint32_t quarter = cpu_ceil_div(cpu_ceil_div(out, 4), 32) * 32;

    return cpu_min(quarter, CPU_DW_ROWS);
}

void cpu_linear_tiles_backward(struct compute *c, const struct linear *l, const float *dy,
                               float *dx, const struct relu_mask *mask, float *dw, float *db)
{
    struct job job = job_of(c, l);
    const uint32_t n_blocks = cpu_ceil_div(l->n, job.block);

    job.weights = tiles_of(&job, &c->weights, l->in, l->out);
    job.dy = dy;
    job.dx = dx;
    job.mask = mask;
    job.dw = dw;
    job.dw_rows = dw_rows_of(l->out);
    if (dx)
        cpu_run(c, cpu_ceil_div(l->out, CPU_TILES_DEPTH), pack_weights_backward, &job);
    cpu_run(c, n_blocks, backward_block, &job);
    if (!dw)
        return;
    cpu_run(c, cpu_ceil_div(l->out, job.dw_rows), dw_rows, &job);
    cpu_epilogue_sum(n_blocks, l->out, job.parts, l->out, db);
}
