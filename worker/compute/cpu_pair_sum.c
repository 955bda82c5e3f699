/*
 * The sum of all pairs' dot products of a sample's vectors, by the identity that needs each vector once:
 *
 *     sum over i < j of t_i . t_j = 1/2 sum over d of ((sum over i of t_id)^2 - sum over i of t_id^2)     (Rendle 2010)
 *
 * Floats are taken CPU_LANES at a time, so that element d is added up in lane d % CPU_LANES.
 */
#include <string.h>

#include "common/simd.h"
#include "worker/compute/cpu_internal.h"

struct job {
    const struct pair_sum *p;
    const float *t, *dz, *dx;
    float *z, *dt;
};

SIMD_INLINE void load(cpu_lanes *v, const float *x, uint32_t n)
{
    if (n == CPU_LANES)
        *v = *(const cpu_lanes *)x;
    else
        memcpy(v, x, n * sizeof *x); /* the other lanes stay 0 */
}

CPU_CLONES static float sum_of_pairs(const float *t, uint32_t n_vectors, uint32_t dim)
{
    cpu_lanes total = { 0 };
    float sum = 0;

    for (uint32_t d = 0; d < dim; d += CPU_LANES) {
        cpu_lanes v = { 0 }, of_vectors = { 0 }, of_squares = { 0 };

        for (uint32_t i = 0; i < n_vectors; i++) {
            load(&v, t + (size_t)i * dim + d, cpu_min(dim - d, CPU_LANES));
            of_vectors += v;
            of_squares += v * v;
        }
        total += of_vectors * of_vectors - of_squares;
    }
    for (uint32_t k = 0; k < CPU_LANES; k++)
        sum += total[k];
    return 0.5f * sum;
}

static void forward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->p->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        j->z[s] += sum_of_pairs(j->t + s * j->p->ld, j->p->n_vectors, j->p->dim);
}

void cpu_pair_sum_forward(struct compute *c, const struct pair_sum *p, const float *t, float *z)
{
    struct job job = { .p = p, .t = t, .z = z };

    cpu_run(c, cpu_ceil_div(p->n, CPU_SAMPLES), forward_task, &job);
}

/* Vector i gets dz (sum of all others): their sum is that of all, less its own. dx: NULL, or dt itself. */
CPU_CLONES static void spread(const float *t, uint32_t n_vectors, uint32_t dim, float dz,
                              const float *dx, float *dt)
{
    for (uint32_t d = 0; d < dim; d += CPU_LANES) {
        const uint32_t n = cpu_min(dim - d, CPU_LANES);
        cpu_lanes v = { 0 }, more = { 0 }, sum = { 0 };

        for (uint32_t i = 0; i < n_vectors; i++) {
            load(&v, t + (size_t)i * dim + d, n);
            sum += v;
        }
        for (uint32_t i = 0; i < n_vectors; i++) {
            const size_t at = (size_t)i * dim + d;

            load(&v, t + at, n);
            v = dz * (sum - v);
            if (dx) {
                load(&more, dx + at, n);
                v += more;
            }
            memcpy(dt + at, &v, n * sizeof *dt);
        }
    }
}

static void backward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->p->n);
    const size_t ld = j->p->ld;

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        spread(j->t + s * ld, j->p->n_vectors, j->p->dim, j->dz[s],
               j->dx ? j->dx + s * ld : NULL, j->dt + s * ld);
}

void cpu_pair_sum_backward(struct compute *c, const struct pair_sum *p, const float *t,
                           const float *dz, const float *dx, float *dt)
{
    struct job job = { .p = p, .t = t, .dz = dz, .dx = dx, .dt = dt };

    cpu_run(c, cpu_ceil_div(p->n, CPU_SAMPLES), backward_task, &job);
}
