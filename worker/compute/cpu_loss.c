/* Sigmoid and binary cross-entropy in the fused form, which neither overflows nor saturates.
 * One value a sample: double costs nothing here. */
#include <math.h>

#include "worker/compute/cpu.h"

/* 1 / (1 + exp(-z)), of e = exp(-|z|) */
static double sigmoid(double z, double e)
{
    return z < 0 ? e / (1 + e) : 1 / (1 + e);
}

struct job {
    uint32_t n, block;
    const float *z, *y;
    float *p, *dz;
    double *sums; /* one a block */
};

static void prob_block(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct cpu_range r = cpu_range_of(task, j->block, j->n);

    (void)thread;
    for (uint32_t s = r.first; s < r.end; s++) {
        const double z = (double)j->z[s];

        j->p[s] = (float)sigmoid(z, exp(-fabs(z)));
    }
}

void cpu_loss_prob(struct compute *c, uint32_t n, const float *z, float *p)
{
    struct job job = { .n = n, .block = CPU_SAMPLES, .z = z, .p = p };

    cpu_run(c, cpu_ceil_div(n, job.block), prob_block, &job);
}

static void loss_block(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
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

void cpu_loss_mean(struct compute *c, uint32_t n, const float *z, const float *y, float *dz,
                   double *ret)
{
    struct job job = {
        .n = n, .block = compute_block(n), .z = z, .y = y, .dz = dz, .sums = c->loss_parts.bytes
    };
    const uint32_t n_blocks = cpu_ceil_div(n, job.block);
    double sum = 0;

    cpu_run(c, n_blocks, loss_block, &job);
    for (uint32_t i = 0; i < n_blocks; i++)
        sum += job.sums[i];
    *ret = n ? sum / n : 0;
}
