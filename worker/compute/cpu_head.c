/*
 * Linear layers of one output, which make the logit: fp32 whatever the products are, because they
 * cost next to nothing and the logit's rounding is seen in the loss. All that is done to a sample
 * is done in one walk.
 *
 *     y    sixteen sums side by side, input i in sum i % 16; then those, ascending; + b
 *     dw   in blocks of samples, as db
 */
#include <string.h>

#include "worker/compute/cpu.h"
#include "worker/compute/cpu_epilogue.h"

struct job {
    const struct linear *l;
    enum compute_act act;
    float *y;
    uint32_t ldy, block;
    const struct relu_mask *mask;
    const float *dy;
    float *dx;
    float *parts; /* [blocks][in + 1]: dw, db; NULL: not wanted */
};

CPU_CLONES static float dot(const float *x, const float *w, uint32_t n)
{
    cpu_lanes acc = { 0 }, last_x = { 0 }, last_w = { 0 };
    uint32_t i = 0;
    float sum = 0;

    for (; i + CPU_LANES <= n; i += CPU_LANES)
        acc += *(const cpu_lanes *)(x + i) * *(const cpu_lanes *)(w + i);
    memcpy(&last_x, x + i, (n - i) * sizeof *x);
    memcpy(&last_w, w + i, (n - i) * sizeof *w);
    acc += last_x * last_w;
    for (uint32_t k = 0; k < CPU_LANES; k++)
        sum += acc[k];
    return sum;
}

static void forward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, l->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        j->y[s * j->ldy] = dot(l->x + s * l->in, l->w, l->in);
    cpu_epilogue_bias(r.end - r.first, 1, j->y + (size_t)r.first * j->ldy, j->ldy, l->b, j->act,
                      j->y + (size_t)r.first * j->ldy, j->ldy);
}

void cpu_head_forward(struct compute *c, const struct linear *l, enum compute_act act, float *y,
                      uint32_t ldy)
{
    struct job job = { .l = l, .act = act, .y = y, .ldy = ldy };

    cpu_run(c, cpu_ceil_div(l->n, CPU_SAMPLES), forward_task, &job);
}

CPU_CLONES static void scale_row(uint32_t n, float a, const float *restrict x,
                                 float *restrict y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = a * x[i];
}

CPU_CLONES static void add_row(uint32_t n, float a, const float *restrict x, float *restrict y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void backward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->block, l->n);
    float *dw = j->parts ? j->parts + (size_t)task * (l->in + 1) : NULL;

    (void)thread;
    if (dw)
        memset(dw, 0, (l->in + 1) * sizeof *dw);
    for (uint32_t s = r.first; s < r.end; s++) {
        float *dx = j->dx ? j->dx + (size_t)s * l->in : NULL;
        const struct relu_mask mask = cpu_mask_at(j->mask, s);

        if (dw) {
            add_row(l->in, j->dy[s], l->x + (size_t)s * l->in, dw);
            dw[l->in] += j->dy[s];
        }
        if (dx) {
            scale_row(l->in, j->dy[s], l->w, dx);
            cpu_epilogue_mask(1, l->in, dx, l->in, j->mask ? &mask : NULL, dx, l->in);
        }
    }
}

void cpu_head_backward(struct compute *c, const struct linear *l, const float *dy, float *dx,
                       const struct relu_mask *mask, float *dw, float *db)
{
    const uint32_t block = compute_block(l->n), n_blocks = cpu_ceil_div(l->n, block);
    struct job job = { .l = l, .block = block, .mask = mask, .dy = dy, .dx = dx };

    if (dw)
        job.parts =
            cpu_scratch_of(&c->db_parts, (size_t)n_blocks * (l->in + 1) * sizeof *job.parts);
    cpu_run(c, n_blocks, backward_task, &job);
    if (!dw)
        return;
    cpu_epilogue_sum(n_blocks, l->in, job.parts, l->in + 1, dw);
    cpu_epilogue_sum(n_blocks, 1, job.parts + l->in, l->in + 1, db);
}
