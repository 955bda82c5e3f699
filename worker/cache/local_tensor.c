#include "worker/cache/local_tensor.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/optimizer.h"

static bool has_coefficient(const struct table_spec *spec)
{
    return spec->optim == TABLE_SPEC_LAMB;
}

/* Not with the padding, of which there is no gradient. */
static uint32_t unit_of(const struct table_spec *spec)
{
    const bool whole = spec->optim == TABLE_SPEC_LAMB || spec->optim == TABLE_SPEC_LARS;

    return whole ? (uint32_t)spec->n_floats : spec->dim;
}

static uint32_t n_units(const struct local_tensor *t)
{
    return (uint32_t)(t->spec.n_floats + t->unit - 1) / t->unit;
}

int local_tensor_init(struct local_tensor *t, const struct table_spec *spec,
                      enum local_tensor_rule rule, struct local_tensor_uses uses)
{
    const uint64_t n = table_spec_n_blocks(spec) * spec->dim;
    const uint64_t n_added = uses.stretches ? n : 0;
    uint64_t n_kept;

    *t = (struct local_tensor){ .spec = *spec, .rule = rule, .n_floats = n };
    t->unit = unit_of(spec);
    t->coefficient.is_kept = uses.may_freeze && has_coefficient(spec);
    n_kept = t->coefficient.is_kept ? 2 * (uint64_t)t->unit : 0;
    if (rule == LOCAL_TENSOR_STEPS)
        t->state_floats = optimizer_find(spec->optim)->state_floats(t->unit);
    t->floats = memory_try_alloc(
        (3 * n + 2 * n_added + n_kept + (uint64_t)n_units(t) * t->state_floats) *
        sizeof *t->floats);
    if (!t->floats)
        return -ENOMEM;
    t->base = t->floats;
    t->here = t->base + n;
    t->out = t->here + n;
    t->pulled = uses.stretches ? t->out + n : NULL;
    t->added = uses.stretches ? t->pulled + n : NULL;
    t->coefficient.shared = t->out + n + 2 * n_added;
    t->coefficient.own = t->coefficient.shared + n_kept / 2;
    t->state = t->coefficient.shared + n_kept;
    return 0;
}

void local_tensor_deinit(struct local_tensor *t)
{
    free(t->floats);
}

static void begin_state(struct local_tensor *t)
{
    const struct optimizer *optim = optimizer_find(t->spec.optim);

    for (uint32_t i = 0; i < n_units(t); i++)
        optim->init(t->here + (uint64_t)i * t->unit, t->state + (uint64_t)i * t->state_floats,
                    t->unit, &t->spec.params);
    t->n_steps = 0;
    t->coefficient.average = 0;
    t->coefficient.rest = 1;
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
    if (t->added) {
        memcpy(t->pulled, weights, t->n_floats * sizeof *weights);
        memset(t->added, 0, t->n_floats * sizeof *t->added);
    }
    begin_state(t);
}

/* M, of which workers have added nothing yet. */
static void note_merge(struct local_tensor *t, const float *weights)
{
    for (uint64_t i = 0; i < t->n_floats; i++)
        t->added[i] = t->pulled[i] - weights[i] - t->added[i];
    memcpy(t->pulled, weights, t->n_floats * sizeof *weights);
}

void local_tensor_take(struct local_tensor *t, float *weights)
{
    if (!t->is_here) {
        begin(t, weights);
        return;
    }
    for (uint64_t i = 0; i < t->n_floats && t->rule == LOCAL_TENSOR_STEPS; i++)
        t->here[i] = weights[i] + (t->here[i] - t->base[i]);
    if (t->added)
        note_merge(t, weights);
    memcpy(t->base, weights, t->n_floats * sizeof *weights);
    local_tensor_read(t, weights);
}

void local_tensor_read(const struct local_tensor *t, float *ret_weights)
{
    const float *from = t->rule == LOCAL_TENSOR_SUM ? t->base : t->here;

    assert(t->is_here);
    memcpy(ret_weights, from, t->n_floats * sizeof *from);
}

/* --- the second moment of Adam and LAMB --- */

static float *second_moment(const struct local_tensor *t, uint32_t unit)
{
    return t->state + (uint64_t)unit * t->state_floats + t->unit;
}

uint64_t local_tensor_frozen_floats(const struct table_spec *spec)
{
    return (table_spec_n_blocks(spec) + has_coefficient(spec)) * spec->dim;
}

static double mean_coefficient(const struct local_coefficient *c)
{
    return c->rest < 1 ? c->average / (1 - c->rest) : 1;
}

void local_tensor_variance(const struct local_tensor *t, float *ret)
{
    const double correction = 1 - pow((double)t->spec.params.beta2, (double)t->n_steps);

    memset(ret, 0, local_tensor_frozen_floats(&t->spec) * sizeof *ret);
    for (uint32_t u = 0; u < n_units(t); u++)
        for (uint32_t i = 0; i < t->unit; i++)
            ret[(uint64_t)u * t->unit + i] =
                (float)((double)second_moment(t, u)[i] / correction);
    if (has_coefficient(&t->spec))
        ret[t->n_floats] = (float)mean_coefficient(&t->coefficient);
}

/* The steps of a weight that has had hardly a gradient by then would have no bound. */
#define LEAST_OF_MEAN 0.01

/* A worker that has made no steps has no second moment of its own, and begins with theirs. */
static void freeze_coefficient(struct local_tensor *t, const float *variance, float least)
{
    struct local_coefficient *c = &t->coefficient;
    const double correction = 1 - pow((double)t->spec.params.beta2, (double)t->n_steps);

    float *fresh = second_moment(t, 0);

    for (uint32_t i = 0; i < t->unit; i++) {
        c->shared[i] = variance[i] > least ? variance[i] : least;
        fresh[i] = t->n_steps ? (float)((double)fresh[i] / correction) : variance[i];
        c->own[i] = fresh[i];
    }
    c->least = least;
    c->average = (double)variance[t->n_floats];
    c->ratio = 1;
}

void local_tensor_freeze(struct local_tensor *t, const float *variance)
{
    double sum = 0;
    float least;

    for (uint64_t i = 0; i < t->spec.n_floats; i++)
        sum += (double)variance[i];
    least = (float)(LEAST_OF_MEAN * sum / (double)t->spec.n_floats);
    if (t->coefficient.is_kept)
        freeze_coefficient(t, variance, least);
    for (uint32_t u = 0; u < n_units(t) && !t->coefficient.is_kept; u++) {
        const float *from = variance + (uint64_t)u * t->unit;
        float *v = second_moment(t, u);

        for (uint32_t i = 0; i < t->unit; i++)
            v[i] = from[i] > least ? from[i] : least;
    }
    t->is_frozen = true;
}

static float rate_at(const struct local_tensor *t, uint64_t clock)
{
    return optimizer_rate(t->spec.params.learning_rate, &t->spec.schedule, clock);
}

static void frozen_step(struct local_tensor *t, const float *gradient, uint64_t clock)
{
    const struct optimizer_params *p = &t->spec.params;
    const double correction = 1 - pow((double)p->beta1, (double)++t->n_steps);
    const float rate = (float)((double)rate_at(t, clock) / correction);

    for (uint32_t u = 0; u < n_units(t); u++) {
        const uint64_t at = (uint64_t)u * t->unit;
        float *w = t->here + at, *m = t->state + (uint64_t)u * t->state_floats;
        const float *v = second_moment(t, u), *g = gradient + at;

        for (uint32_t i = 0; i < t->unit; i++) {
            m[i] = p->beta1 * m[i] + (1 - p->beta1) * (g[i] + p->weight_decay * w[i]);
            w[i] -= rate * m[i] / (sqrtf(v[i]) + p->epsilon);
        }
    }
}

/* --- the coefficient of LAMB's steps --- */

/* The paper's beta3; how far r may go, and how far in one step. */
#define COEFFICIENT_BETA 0.9
#define RATIO_LEAST 0.5
#define RATIO_MOST 4.0
#define RATIO_STEP 0.1

/* After a step from the weights in `out`; the first moment stands before the second. */
static void follow_coefficient(struct local_tensor *t)
{
    const struct optimizer_params *p = &t->spec.params;
    const double c1 = 1 - pow((double)p->beta1, (double)t->n_steps),
                 c2 = 1 - pow((double)p->beta2, (double)t->n_steps);
    struct local_coefficient *c = &t->coefficient;
    const float *second = second_moment(t, 0);
    double of_w = 0, of_u = 0;

    for (uint32_t i = 0; i < t->unit; i++) {
        const double w = (double)t->out[i], m = (double)t->state[i], v = (double)second[i],
                     u = m / c1 / (sqrt(v / c2) + (double)p->epsilon) +
                         (double)p->weight_decay * w;

        of_w += w * w;
        of_u += u * u;
    }
    if (!(of_w > 0 && of_u > 0))
        return;
    c->average = COEFFICIENT_BETA * c->average + (1 - COEFFICIENT_BETA) * sqrt(of_w / of_u);
    c->rest *= COEFFICIENT_BETA;
}

static double limit(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

/* Both moments take a step; returns r before its limits, if there is no decay. */
static double moments_step(struct local_tensor *t, const float *gradient)
{
    const struct optimizer_params *p = &t->spec.params;
    const struct local_coefficient *c = &t->coefficient;
    float *m = t->state, *fresh = second_moment(t, 0);
    double most = 0;

    for (uint32_t i = 0; i < t->unit; i++) {
        const float g = gradient[i], then = c->own[i] > c->least ? c->own[i] : c->least;
        float now;
        double ratio;

        m[i] = p->beta1 * m[i] + (1 - p->beta1) * g;
        fresh[i] = p->beta2 * fresh[i] + (1 - p->beta2) * g * g;
        now = fresh[i] > c->least ? fresh[i] : c->least;
        ratio = (double)((sqrtf(then) + p->epsilon) / (sqrtf(now) + p->epsilon));
        most = ratio > most ? ratio : most;
    }
    return most;
}

/* The direction of a weight's step before decay. */
static double frozen_direction(const struct local_tensor *t, uint32_t i, double correction)
{
    const float root = sqrtf(t->coefficient.shared[i]) + t->spec.params.epsilon;

    return (double)t->state[i] / correction / (double)root;
}

/* The share of the direction's norm that is not decay. */
static double undecayed(const struct local_tensor *t, double correction)
{
    const double wd = (double)t->spec.params.weight_decay;
    double without = 0, with = 0;

    for (uint32_t i = 0; i < t->unit && wd > 0; i++) {
        const double u = frozen_direction(t, i, correction), all = u + wd * (double)t->here[i];

        without += u * u;
        with += all * all;
    }
    return without < with ? sqrt(without / with) : 1;
}

static void frozen_lamb_step(struct local_tensor *t, const float *gradient, uint64_t clock)
{
    const struct optimizer_params *p = &t->spec.params;
    const double correction = 1 - pow((double)p->beta1, (double)++t->n_steps);
    struct local_coefficient *c = &t->coefficient;
    const double most = moments_step(t, gradient), share = undecayed(t, correction);
    const double ratio = limit(most * share + 1 - share, RATIO_LEAST, RATIO_MOST);
    double rate;

    c->ratio = limit(ratio, (1 - RATIO_STEP) * c->ratio, (1 + RATIO_STEP) * c->ratio);
    rate = (double)rate_at(t, clock) * c->average * c->ratio;
    for (uint32_t i = 0; i < t->unit; i++)
        t->here[i] -= (float)(rate * (frozen_direction(t, i, correction) +
                                      (double)(p->weight_decay * t->here[i])));
}

static void own_step(struct local_tensor *t, const float *gradient, uint64_t clock)
{
    const struct optimizer *optim = optimizer_find(t->spec.optim);
    const struct optimizer_step step = optimizer_step_at(optim, &t->spec, clock, ++t->n_steps);

    if (t->coefficient.is_kept)
        memcpy(t->out, t->here, t->n_floats * sizeof *t->out);
    for (uint32_t i = 0; i < n_units(t); i++) {
        const uint64_t at = (uint64_t)i * t->unit;

        optim->step(t->here + at, t->state + (uint64_t)i * t->state_floats, gradient + at,
                    t->unit, &step);
    }
    if (t->coefficient.is_kept)
        follow_coefficient(t);
}

void local_tensor_step(struct local_tensor *t, const float *gradient, uint64_t clock)
{
    assert(t->is_here);
    if (t->rule == LOCAL_TENSOR_SUM)
        for (uint64_t i = 0; i < t->n_floats; i++)
            t->here[i] += gradient[i];
    else if (!t->is_frozen)
        own_step(t, gradient, clock);
    else if (t->coefficient.is_kept)
        frozen_lamb_step(t, gradient, clock);
    else
        frozen_step(t, gradient, clock);
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

/* --- the adaptive weight --- */

double local_tensor_square(const struct local_tensor *t)
{
    double sum = 0;

    assert(t->is_here);
    for (uint64_t i = 0; i < t->n_floats; i++) {
        const double d = (double)t->base[i] - (double)t->here[i] - (double)t->added[i];

        sum += d * d;
    }
    return sum;
}

double local_tensor_merged_square(const struct local_tensor *t)
{
    double sum = 0;

    for (uint64_t i = 0; i < t->n_floats; i++)
        sum += (double)t->added[i] * (double)t->added[i];
    return sum;
}

double local_tensor_theta(double mean_square, double merged_square, uint32_t n_workers)
{
    return merged_square > 0 ? limit(mean_square / merged_square, 1, n_workers) : 1;
}

void local_tensor_stretch(struct local_tensor *t, double theta, float *weights)
{
    for (uint64_t i = 0; i < t->n_floats; i++) {
        t->added[i] = (float)((theta - 1) * (double)t->added[i]);
        t->here[i] -= t->added[i];
    }
    local_tensor_read(t, weights);
}

void local_tensor_unstretch(struct local_tensor *t)
{
    for (uint64_t i = 0; i < t->n_floats; i++) {
        t->here[i] += t->added[i];
        t->added[i] = 0;
    }
}

void local_tensor_reset(struct local_tensor *t)
{
    t->is_here = t->is_frozen = false;
}
