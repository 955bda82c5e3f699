/*
 * The output head: linear layers of one output, which make the logit, then sigmoid and binary cross-entropy.
 *
 * The layer is fp32 whatever the products are, because it costs next to nothing and the logit's rounding is seen in the
 * loss. All that is done to a sample is done in one walk.
 *
 *     y    sixteen sums side by side, input i in sum i % 16; then those, ascending; + b
 *     dw   in blocks of samples, as db
 *
 * The loss has the fused form, which neither overflows nor saturates, in double: it is one value a sample.
 */
#include <math.h>
#include <string.h>

#include "worker/compute/cpu_epilogue.h"
#include "worker/compute/cpu_internal.h"

/* ---- a layer of one output ---- */

struct layer_job {
    const struct linear *l;
    enum device_act act;
    float *y;
    uint32_t ldy, block;
    const struct relu_mask *mask;
    const float *dy;
    float *dx;
    float *partials; /* [blocks][in + 1]: dw, db; NULL: not wanted */
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
    const struct layer_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, l->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        j->y[s * j->ldy] = dot(l->x + s * l->in, l->w, l->in);
    cpu_epilogue_bias(r.end - r.first, 1, j->y + (size_t)r.first * j->ldy, j->ldy, l->b, j->act,
                      j->y + (size_t)r.first * j->ldy, j->ldy);
}

void cpu_logit_forward(struct compute *c, const struct linear *l, enum device_act act, float *y,
                       uint32_t ldy)
{
    struct layer_job job = { .l = l, .act = act, .y = y, .ldy = ldy };

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
    const struct layer_job *j = job;
    const struct linear *l = j->l;
    const struct cpu_range r = cpu_range_of(task, j->block, l->n);
    float *dw = j->partials ? j->partials + (size_t)task * (l->in + 1) : NULL;

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

void cpu_logit_backward(struct compute *c, const struct linear *l, const float *dy, float *dx,
                        const struct relu_mask *mask, float *dw, float *db)
{
    const uint32_t block = device_block(l->n), n_blocks = cpu_ceil_div(l->n, block);
    struct layer_job job = { .l = l, .block = block, .mask = mask, .dy = dy, .dx = dx };

    if (dw)
        job.partials = cpu_scratch_of(&c->db_partials,
                                      (size_t)n_blocks * (l->in + 1) * sizeof *job.partials);
    cpu_run(c, n_blocks, backward_task, &job);
    if (!dw)
        return;
    cpu_epilogue_sum(n_blocks, l->in, job.partials, l->in + 1, dw);
    if (db)
        cpu_epilogue_sum(n_blocks, 1, job.partials + l->in, l->in + 1, db);
}

/* ---- sigmoid and loss ---- */

/* 1 / (1 + exp(-z)), of e = exp(-|z|) */
static double sigmoid(double z, double e)
{
    return z < 0 ? e / (1 + e) : 1 / (1 + e);
}

struct loss_job {
    uint32_t n, block;
    const float *z, *y;
    float *p, *dz;
    double *sums; /* one a block */
};

static void prob_block(void *job, uint32_t task, uint32_t thread)
{
    const struct loss_job *j = job;
    const struct cpu_range r = cpu_range_of(task, j->block, j->n);

    (void)thread;
    for (uint32_t s = r.first; s < r.end; s++) {
        const double z = (double)j->z[s];

        j->p[s] = (float)sigmoid(z, exp(-fabs(z)));
    }
}

void cpu_logit_prob(struct compute *c, uint32_t n, const float *z, float *p)
{
    struct loss_job job = { .n = n, .block = CPU_SAMPLES, .z = z, .p = p };

    cpu_run(c, cpu_ceil_div(n, job.block), prob_block, &job);
}

static void loss_block(void *job, uint32_t task, uint32_t thread)
{
    const struct loss_job *j = job;
    const struct cpu_range r = cpu_range_of(task, j->block, j->n);
    double sum = 0;

    (void)thread;
    for (uint32_t s = r.first; s < r.end; s++) {
        const double z = (double)j->z[s], y = (double)j->y[s], e = exp(-fabs(z));

        sum += (z > 0 ? z : 0) - z * y + log1p(e);
        j->dz[s] = (float)((sigmoid(z, e) - y) / j->n);
    }
    j->sums[task] = sum;
}

void cpu_logit_loss(struct compute *c, uint32_t n, const float *z, const float *y, float *dz,
                    double *ret)
{
    struct loss_job job = { .n = n,
                            .block = device_block(n),
                            .z = z,
                            .y = y,
                            .dz = dz,
                            .sums = c->loss_partials.bytes };
    const uint32_t n_blocks = cpu_ceil_div(n, job.block);
    double sum = 0;

    cpu_run(c, n_blocks, loss_block, &job);
    for (uint32_t i = 0; i < n_blocks; i++)
        sum += job.sums[i];
    *ret = n ? sum / n : 0;
}
