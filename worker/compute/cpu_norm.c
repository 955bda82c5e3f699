/*
 * Batch normalisation. Columns are taken CPU_LANES at a time, with sums over samples,
 * ascending, in double; past the last column lanes hold 0.
 */
#include <math.h>
#include <string.h>

#include "worker/compute/cpu.h"
#include "worker/compute/cpu_epilogue.h"

typedef double double_lanes
    __attribute__((vector_size(CPU_LANES * sizeof(double)), aligned(8)));

static inline uint32_t lanes(uint32_t width, uint32_t column)
{
    return width - column < CPU_LANES ? width - column : CPU_LANES;
}

static inline void load(cpu_lanes *to, const float *x, uint32_t n_lanes)
{
    if (n_lanes == CPU_LANES)
        *to = *(const cpu_lanes *)x;
    else
        memcpy(to, x, n_lanes * sizeof *x);
}

static inline void store(float *to, const cpu_lanes *x, uint32_t n_lanes)
{
    if (n_lanes == CPU_LANES)
        *(cpu_lanes *)to = *x;
    else
        memcpy(to, x, n_lanes * sizeof *to);
}

static float inverse_std(float var)
{
    return (float)(1 / sqrt((double)var + (double)COMPUTE_NORM_EPSILON));
}

/* Mean and variance of one group of columns. Two walks, mean first: the difference of two large
 * sums would lose the variance. */
CPU_CLONES static void batch_columns(const float *x, uint32_t n, uint32_t width,
                                     uint32_t n_lanes, float *mean, float *var)
{
    double_lanes sum = { 0 }, squares = { 0 };
    cpu_lanes v = { 0 };

    for (size_t s = 0; s < n; s++) {
        load(&v, x + s * width, n_lanes);
        sum += __builtin_convertvector(v, double_lanes);
    }
    sum /= (double)(n ? n : 1);
    for (size_t s = 0; s < n; s++) {
        double_lanes d;

        load(&v, x + s * width, n_lanes);
        d = __builtin_convertvector(v, double_lanes) - sum;
        squares += d * d;
    }
    for (uint32_t k = 0; k < n_lanes; k++) {
        mean[k] = (float)sum[k];
        var[k] = (float)(squares[k] / (n ? n : 1));
    }
}

struct job {
    const struct norm *nm;
    const float *x;
    float *y, *dy;
    uint32_t ldy;
    float least; /* of y */
    const struct relu_mask *mask;
    const struct norm_grads *grads;
};

static void batch_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct norm *nm = j->nm;
    const uint32_t o = task * CPU_LANES;

    (void)thread;
    batch_columns(j->x + o, nm->n, nm->width, lanes(nm->width, o), nm->mean + o, nm->var + o);
}

void cpu_norm_batch(struct compute *c, const struct norm *nm, const float *x)
{
    struct job job = { .nm = nm, .x = x };

    cpu_run(c, cpu_ceil_div(nm->width, CPU_LANES), batch_task, &job);
    for (uint32_t o = 0; o < nm->width; o++)
        nm->inv_std[o] = inverse_std(nm->var[o]);
}

void cpu_norm_running(struct compute *c, const struct norm *nm)
{
    (void)c;
    for (uint32_t o = 0; o < nm->width; o++) {
        const float var = 1 + nm->running_var[o];

        nm->mean[o] = nm->running_mean[o];
        nm->var[o] = var > 0 ? var : 0; /* lossy pushes may leave a tiny variance below 0 */
        nm->inv_std[o] = inverse_std(nm->var[o]);
    }
}

/* least: 0 for ReLU, else -infinity; a NaN stays one. */
CPU_CLONES static void apply_row(const struct norm *nm, float least, const float *restrict x,
                                 float *restrict y)
{
    const float *restrict gamma = nm->gamma, *restrict beta = nm->beta,
                          *restrict mean = nm->mean;
    const float *restrict inv_std = nm->inv_std;

    for (uint32_t o = 0; o < nm->width; o++) {
        const float v = (1 + gamma[o]) * ((x[o] - mean[o]) * inv_std[o]) + beta[o];

        y[o] = least > v ? least : v;
    }
}

static void apply_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->nm->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        apply_row(j->nm, j->least, j->x + s * j->nm->width, j->y + s * j->ldy);
}

void cpu_norm_apply(struct compute *c, const struct norm *nm, enum compute_act act,
                    const float *x, float *y, uint32_t ldy)
{
    struct job job = {
        .nm = nm, .x = x, .y = y, .ldy = ldy, .least = act == COMPUTE_RELU ? 0.0f : -INFINITY
    };

    cpu_run(c, cpu_ceil_div(nm->n, CPU_SAMPLES), apply_task, &job);
}

static void mask_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const uint32_t width = j->nm->width;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->nm->n);
    const struct relu_mask mask = cpu_mask_at(j->mask, r.first);
    float *dy = j->dy + (size_t)r.first * width;

    (void)thread;
    cpu_epilogue_mask(r.end - r.first, width, dy, width, &mask, dy, width);
}

/* Of columns o ..:  dx = (1 + gamma) inv_std (dy - (sum dy + xhat sum(dy xhat)) / n) */
CPU_CLONES static void backward_columns(const struct norm *nm, const float *x, uint32_t o,
                                        float *dy, const struct norm_grads *grads)
{
    const uint32_t width = nm->width, n_lanes = lanes(width, o);
    cpu_lanes mean = { 0 }, inv_std = { 0 }, gamma = { 0 }, v = { 0 }, d = { 0 };
    double_lanes sum = { 0 }, dot = { 0 };

    load(&mean, nm->mean + o, n_lanes);
    load(&inv_std, nm->inv_std + o, n_lanes);
    load(&gamma, nm->gamma + o, n_lanes);
    for (size_t s = 0; s < nm->n; s++) {
        load(&v, x + s * width + o, n_lanes);
        load(&d, dy + s * width + o, n_lanes);
        sum += __builtin_convertvector(d, double_lanes);
        dot += __builtin_convertvector(d, double_lanes) *
               __builtin_convertvector((v - mean) * inv_std, double_lanes);
    }
    for (uint32_t k = 0; k < n_lanes; k++) {
        grads->gamma[o + k] = (float)dot[k];
        grads->beta[o + k] = (float)sum[k];
    }
    sum /= (double)(nm->n ? nm->n : 1);
    dot /= (double)(nm->n ? nm->n : 1);
    for (size_t s = 0; s < nm->n; s++) {
        load(&v, x + s * width + o, n_lanes);
        load(&d, dy + s * width + o, n_lanes);
        d -= __builtin_convertvector(
            sum + __builtin_convertvector((v - mean) * inv_std, double_lanes) * dot, cpu_lanes);
        d *= (1 + gamma) * inv_std;
        store(dy + s * width + o, &d, n_lanes);
    }
}

static void backward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;

    (void)thread;
    backward_columns(j->nm, j->x, task * CPU_LANES, j->dy, j->grads);
}

void cpu_norm_backward(struct compute *c, const struct norm *nm, const struct relu_mask *mask,
                       const float *x, float *dy, const struct norm_grads *grads)
{
    const float unbias = nm->n > 1 ? (float)nm->n / (float)(nm->n - 1) : 1.0f;
    struct job job = { .nm = nm, .x = x, .dy = dy, .mask = mask, .grads = grads };

    if (mask)
        cpu_run(c, cpu_ceil_div(nm->n, CPU_SAMPLES), mask_task, &job);
    cpu_run(c, cpu_ceil_div(nm->width, CPU_LANES), backward_task, &job);
    for (uint32_t o = 0; o < nm->width; o++) {
        grads->running_mean[o] =
            nm->n ? COMPUTE_NORM_MOMENTUM * (nm->running_mean[o] - nm->mean[o]) : 0;
        grads->running_var[o] =
            nm->n ? COMPUTE_NORM_MOMENTUM * (1 + nm->running_var[o] - nm->var[o] * unbias) : 0;
    }
}
