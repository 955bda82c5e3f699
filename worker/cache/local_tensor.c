#include "worker/cache/local_tensor.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/optimizer.h"

int local_tensor_init(struct local_tensor *t, const struct table_spec *spec,
                      enum local_tensor_rule rule)
{
    const uint64_t n_blocks = table_spec_n_blocks(spec), n = n_blocks * spec->dim;

    *t = (struct local_tensor){ .spec = *spec, .rule = rule, .n_floats = n };
    if (rule == LOCAL_TENSOR_STEPS)
        t->state_floats = table_spec_state_floats(spec);
    t->floats = memory_try_alloc((3 * n + n_blocks * t->state_floats) * sizeof *t->floats);
    if (!t->floats)
        return -ENOMEM;
    t->base = t->floats;
    t->here = t->base + n;
    t->out = t->here + n;
    t->state = t->out + n;
    return 0;
}

void local_tensor_deinit(struct local_tensor *t)
{
    free(t->floats);
}

static void begin_state(struct local_tensor *t)
{
    const struct optimizer *optim = optimizer_find(t->spec.optim);
    const uint32_t dim = t->spec.dim;

    for (uint64_t i = 0; i < t->n_floats / dim; i++)
        optim->init(t->here + i * dim, t->state + i * t->state_floats, dim, &t->spec.params);
    t->n_steps = 0;
}

/* Of the first pull: nothing is lacking. */
static void begin(struct local_tensor *t, const float *weights)
{
    memcpy(t->base, weights, t->n_floats * sizeof *weights);
    t->is_here = true;
    if (t->rule == LOCAL_TENSOR_SUM) {
        memset(t->here, 0, t->n_floats * sizeof *t->here);
        return;
    }
    memcpy(t->here, weights, t->n_floats * sizeof *weights);
    begin_state(t);
}

void local_tensor_take(struct local_tensor *t, float *weights)
{
    if (!t->is_here) {
        begin(t, weights);
        return;
    }
    for (uint64_t i = 0; i < t->n_floats && t->rule == LOCAL_TENSOR_STEPS; i++)
        t->here[i] = weights[i] + (t->here[i] - t->base[i]);
    memcpy(t->base, weights, t->n_floats * sizeof *weights);
    local_tensor_read(t, weights);
}

void local_tensor_read(const struct local_tensor *t, float *ret_weights)
{
    const float *from = t->rule == LOCAL_TENSOR_SUM ? t->base : t->here;

    assert(t->is_here);
    memcpy(ret_weights, from, t->n_floats * sizeof *from);
}

/* --- Adam's second moment --- */

static float *second_moment(const struct local_tensor *t, uint64_t block)
{
    return t->state + block * t->state_floats + t->spec.dim;
}

void local_tensor_variance(const struct local_tensor *t, float *ret)
{
    const double correction = 1 - pow((double)t->spec.params.beta2, (double)t->n_steps);
    const uint32_t dim = t->spec.dim;

    for (uint64_t i = 0; i < t->n_floats; i++)
        ret[i] = (float)((double)second_moment(t, i / dim)[i % dim] / correction);
}

/* The steps of a weight that has had hardly a gradient by then would have no bound. */
#define LEAST_OF_MEAN 0.01

void local_tensor_freeze(struct local_tensor *t, const float *variance)
{
    const uint32_t dim = t->spec.dim;
    double sum = 0;
    float least;

    for (uint64_t i = 0; i < t->spec.n_floats; i++)
        sum += (double)variance[i];
    least = (float)(LEAST_OF_MEAN * sum / (double)t->spec.n_floats);
    for (uint64_t i = 0; i < t->n_floats; i++)
        second_moment(t, i / dim)[i % dim] = variance[i] > least ? variance[i] : least;
    t->is_frozen = true;
}

static void frozen_step(struct local_tensor *t, const float *gradient, uint64_t clock)
{
    const struct optimizer_params *p = &t->spec.params;
    const double correction = 1 - pow((double)p->beta1, (double)++t->n_steps);
    const float rate =
        (float)((double)optimizer_rate(p->learning_rate, &t->spec.schedule, clock) /
                correction);
    const uint32_t dim = t->spec.dim;

    for (uint64_t b = 0; b < t->n_floats / dim; b++) {
        float *w = t->here + b * dim, *m = t->state + b * t->state_floats;
        const float *v = second_moment(t, b), *g = gradient + b * dim;

        for (uint32_t i = 0; i < dim; i++) {
            m[i] = p->beta1 * m[i] + (1 - p->beta1) * (g[i] + p->weight_decay * w[i]);
            w[i] -= rate * m[i] / (sqrtf(v[i]) + p->epsilon);
        }
    }
}

void local_tensor_step(struct local_tensor *t, const float *gradient, uint64_t clock)
{
    const struct optimizer *optim = optimizer_find(t->spec.optim);
    const uint32_t dim = t->spec.dim;
    struct optimizer_step step;

    assert(t->is_here);
    if (t->rule == LOCAL_TENSOR_SUM) {
        for (uint64_t i = 0; i < t->n_floats; i++)
            t->here[i] += gradient[i];
        return;
    }
    if (t->is_frozen) {
        frozen_step(t, gradient, clock);
        return;
    }
    step = optimizer_step_at(optim, &t->spec, clock, ++t->n_steps);
    for (uint64_t i = 0; i < t->n_floats / dim; i++)
        optim->step(t->here + i * dim, t->state + i * t->state_floats, gradient + i * dim, dim,
                    &step);
}

const float *local_tensor_difference(struct local_tensor *t)
{
    assert(t->is_here);
    if (t->rule == LOCAL_TENSOR_SUM) {
        memcpy(t->out, t->here, t->n_floats * sizeof *t->out);
        memset(t->here, 0, t->n_floats * sizeof *t->here);
        return t->out;
    }
    for (uint64_t i = 0; i < t->n_floats; i++)
        t->out[i] = t->base[i] - t->here[i];
    memcpy(t->base, t->here, t->n_floats * sizeof *t->base);
    return t->out;
}

void local_tensor_reset(struct local_tensor *t)
{
    t->is_here = t->is_frozen = false;
}
