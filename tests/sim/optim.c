#include "tests/sim/optim.h"

#include <assert.h>
#include <math.h>

static uint32_t n_floats(const struct table_spec *spec)
{
    switch (spec->optim) {
    case TABLE_SPEC_ADAM:
        return 2 * spec->dim;
    case TABLE_SPEC_ADAMW:
        return 2 * spec->dim + 1;
    case TABLE_SPEC_ROWWISE_ADAGRAD:
        return 1;
    default:
        return 0;
    }
}

uint32_t optimizer_state_floats(const struct table_spec *spec)
{
    return n_floats(spec) + (spec->row_decay > 0);
}

void optimizer_begin(const struct table_spec *spec, uint64_t t, float *row)
{
    const uint32_t n = n_floats(spec);

    for (uint32_t i = 0; i < n; i++)
        row[spec->dim + i] =
            spec->optim == TABLE_SPEC_ROWWISE_ADAGRAD ? spec->params.initial_accumulator : 0;
    if (spec->row_decay > 0)
        row[spec->dim + n] = (float)t;
}

/* What n steps that each take this share leave; rounded once where n is 1. */
static float kept(double share, double n)
{
    return n == 1 ? (float)(1 - share) : n > 0 ? (float)exp(n * log1p(-share)) : 1;
}

void optimizer_show(const struct table_spec *spec, uint64_t t, const float *row, uint32_t n,
                    float *ret)
{
    float by = 1;

    if (spec->row_decay > 0)
        by = kept((double)spec->row_decay, (double)t - (double)row[spec->dim + n_floats(spec)]);
    for (uint32_t i = 0; i < n; i++)
        ret[i] = row[i] * by;
}

/* Of up to 4 floats, in the order in which lanes are folded: where somebody is missing in a clock, weights are thirds, and
 * sums are not exact. */
static float sum_of_squares(const float *g, uint32_t dim)
{
    float squares[4] = { 0 };

    assert(dim <= COUNT_OF(squares));
    for (uint32_t i = 0; i < dim; i++)
        squares[i] = g[i] * g[i];
    return (squares[0] + squares[2]) + (squares[1] + squares[3]);
}

static void step_adagrad(const struct table_spec *spec, const float *g, float *row)
{
    float *s = &row[spec->dim], rate;

    *s += sum_of_squares(g, spec->dim) / (float)spec->dim;
    rate = spec->params.learning_rate / (sqrtf(*s) + spec->params.epsilon);
    for (uint32_t i = 0; i < spec->dim; i++)
        row[i] -= rate * g[i];
}

static void step_adam(const struct table_spec *spec, uint64_t t, const float *g, float *row)
{
    const double b1 = 0.9, b2 = 0.999;
    double rate = (double)spec->params.learning_rate / (1 - pow(b1, (double)t)) *
                  sqrt(1 - pow(b2, (double)t));
    float *m = row + spec->dim, *v = m + spec->dim;

    for (uint32_t i = 0; i < spec->dim; i++) {
        m[i] = (float)b1 * m[i] + (float)(1 - b1) * g[i];
        v[i] = (float)b2 * v[i] + (float)(1 - b2) * (g[i] * g[i]);
        row[i] -= (float)rate * (m[i] / (sqrtf(v[i]) + spec->params.epsilon));
    }
}

/* The decay of all steps since the row's last one; the schedules' step counts are floats exactly. */
static void step_adamw(const struct table_spec *spec, uint64_t t, const float *g, float *row)
{
    const double lr = (double)spec->params.learning_rate,
                 decay = lr * (double)spec->params.weight_decay;
    float *then = &row[3 * spec->dim];
    const double n = *then > 0 ? (double)t - (double)*then : 1;
    const float by = kept(decay, n);

    for (uint32_t i = 0; i < spec->dim; i++)
        row[i] *= by;
    step_adam(spec, t, g, row);
    *then = (float)t;
}

void optimizer_step(const struct table_spec *spec, uint64_t t, const float *gradient,
                    float *row)
{
    if (spec->row_decay > 0) {
        optimizer_show(spec, t, row, spec->dim, row);
        row[spec->dim + n_floats(spec)] = (float)t;
    }
    switch (spec->optim) {
    case TABLE_SPEC_ADAM:
        step_adam(spec, t, gradient, row);
        break;
    case TABLE_SPEC_ADAMW:
        step_adamw(spec, t, gradient, row);
        break;
    case TABLE_SPEC_ROWWISE_ADAGRAD:
        step_adagrad(spec, gradient, row);
        break;
    default:
        for (uint32_t i = 0; i < spec->dim; i++)
            row[i] -= spec->params.learning_rate * gradient[i];
        break;
    }
}
