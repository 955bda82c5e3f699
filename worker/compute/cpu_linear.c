/* Linear layers: OpenBLAS, called for a block of the product at a time, and what follows the
 * product done while the block is in the second-level cache. */
#include <string.h>

#include "worker/compute/cpu.h"
#include "worker/compute/cpu_epilogue.h"
#include "worker/compute/cpu_gemm.h"

struct forward {
    const struct linear *l;
    enum compute_act act;
    float *y;
    uint32_t ldy, block;
};

static void forward_block(void *job, uint32_t task, uint32_t thread)
{
    const struct forward *f = job;
    const struct linear *l = f->l;
    const struct cpu_range r = cpu_range_of(task, f->block, l->n);
    float *y = f->y + (size_t)r.first * f->ldy;

    (void)thread;
    cpu_gemm_forward(r.end - r.first, l->in, l->out, l->x + (size_t)r.first * l->in, l->w, y,
                     f->ldy);
    cpu_epilogue_bias(r.end - r.first, l->out, y, f->ldy, l->b, f->act, y, f->ldy);
}

void cpu_linear_forward(struct compute *c, const struct linear *l, enum compute_act act,
                        float *y, uint32_t ldy)
{
    struct forward job = { l, act, y, ldy, compute_block(l->n) };

    if (l->out == 1)
        cpu_head_forward(c, l, act, y, ldy);
    else if (c->tiles)
        cpu_linear_tiles_forward(c, l, act, y, ldy);
    else
        cpu_run(c, cpu_ceil_div(l->n, job.block), forward_block, &job);
}

/* Tasks: first those of rows of dw, which take longest, then those of blocks of samples. */
struct backward {
    const struct linear *l;
    const struct relu_mask *mask;
    const float *dy;
    float *dx, *dw;
    float *parts; /* db of each block */
    uint32_t block, dw_rows, n_dw_tasks;
};

/* A task for every half of dw, but not so few rows that packing X takes longer than the
 * product, and not so many that large layers leave threads without work. */
static uint32_t dw_rows_of(uint32_t out)
{
    const uint32_t half = (out / 2 + 15) / 16 * 16;

    return half < 128 ? 128 : half > 256 ? 256 : half;
}

static void dw_rows(const struct backward *j, uint32_t task)
{
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->dw_rows, l->out);

    cpu_gemm_dw(l->n, l->in, r.end - r.first, j->dy + r.first, l->out, l->x,
                j->dw + (size_t)r.first * l->in);
}

static void backward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct backward *j = job;
    const struct linear *l = j->l;
    struct cpu_range r;
    uint32_t n, i;

    (void)thread;
    if (task < j->n_dw_tasks) {
        dw_rows(j, task);
        return;
    }
    i = task - j->n_dw_tasks;
    r = cpu_range_of(i, j->block, l->n);
    n = r.end - r.first;
    if (j->dw)
        cpu_epilogue_sum(n, l->out, j->dy + (size_t)r.first * l->out, l->out,
                         j->parts + (size_t)i * l->out);
    if (j->dx) {
        float *dx = j->dx + (size_t)r.first * l->in;
        const struct relu_mask mask = cpu_mask_at(j->mask, r.first);

        cpu_gemm_dx(n, l->in, l->out, j->dy + (size_t)r.first * l->out, l->w, dx);
        cpu_epilogue_mask(n, l->in, dx, l->in, j->mask ? &mask : NULL, dx, l->in);
    }
}

void cpu_linear_backward(struct compute *c, const struct linear *l, const float *dy, float *dx,
                         const struct relu_mask *mask, float *dw, float *db)
{
    const uint32_t block = compute_block(l->n), n_blocks = cpu_ceil_div(l->n, block);
    struct backward job = { .l = l,
                            .mask = mask,
                            .dy = dy,
                            .dx = dx,
                            .dw = dw,
                            .block = block,
                            .dw_rows = dw_rows_of(l->out) };

    if (l->out == 1) {
        cpu_head_backward(c, l, dy, dx, mask, dw, db);
        return;
    }
    if (c->tiles) {
        cpu_linear_tiles_backward(c, l, dy, dx, mask, dw, db);
        return;
    }
    job.parts = cpu_scratch_of(&c->db_parts, (size_t)n_blocks * l->out * sizeof *job.parts);
    if (dw)
        job.n_dw_tasks = cpu_ceil_div(l->out, job.dw_rows);
    cpu_run(c, job.n_dw_tasks + n_blocks, backward_task, &job);
    if (dw)
        cpu_epilogue_sum(n_blocks, l->out, job.parts, l->out, db);
}
