/*
 * The optimizers, side by side, and their catalogue. Each has five functions, X_state_floats, X_prepare
 * (where it derives values from a step), X_init, X_check and X_step, whose contracts are at struct optimizer.
 *
 * X_step is a SIMD_INLINE function, compiled three times by BUILDS() (common/simd.h). All builds leave the
 * same bits.
 */
#include "server/core/optimizer.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "proto/section.h"

#define BUILDS(name, number, prepare_or_null)                     \
    BUILD(name, , SIMD_TARGET_PLAIN, number, prepare_or_null)     \
    BUILD(name, _avx2, SIMD_TARGET_AVX2, number, prepare_or_null) \
    BUILD(name, _avx512, SIMD_TARGET_AVX512, number, prepare_or_null)

#define BUILD(name, suffix, target, number, prepare_or_null)                              \
    target static void name##_row##suffix(float *restrict weights, float *restrict state, \
                                          const optimizer_gradient *restrict grad,        \
                                          uint32_t dim, const struct optimizer_step *s)   \
    {                                                                                     \
        name##_step(weights, state, grad, dim, s);                                        \
    }                                                                                     \
    static const struct optimizer name##suffix = {                                        \
        .id = (number),                                                                   \
        .state_floats = name##_state_floats,                                              \
        .prepare = (prepare_or_null),                                                     \
        .init = name##_init,                                                              \
        .check = name##_check,                                                            \
        .step = name##_row##suffix,                                                       \
    };

/* --- what a state may be --- */

static enum optimizer_fault check_magnitude(const optimizer_gradient *x, uint32_t n, double max)
{
    const float most = (float)max;
    bool is_large = false;

    for (uint32_t i = 0; i < n; i++)
        is_large |= fabsf(x[i]) > most;
    return is_large ? OPTIMIZER_LARGE : OPTIMIZER_FINE;
}

/* Sums of squares, which begin at initial_accumulator and never fall from there to 0. `divides`: by the root alone. */
static enum optimizer_fault check_sums(const optimizer_gradient *sums, uint32_t n,
                                       const struct optimizer_params *p, bool divides)
{
    float least = n ? sums[0] : 0.0f;

    for (uint32_t i = 1; i < n; i++)
        least = sums[i] < least ? sums[i] : least;
    if (least < 0.0f)
        return OPTIMIZER_NEGATIVE;
    return n && least == 0.0f && divides && p->initial_accumulator > 0.0f ? OPTIMIZER_ZERO
                                                                          : OPTIMIZER_FINE;
}

/* Plain gradient descent: w <- w - lr * g. */
static uint32_t sgd_state_floats(uint32_t dim)
{
    (void)dim;
    return 0;
}

static void sgd_init(const float *restrict w, float *restrict state, uint32_t dim,
                     const struct optimizer_params *p)
{
    (void)w, (void)state, (void)dim, (void)p;
}

static enum optimizer_fault sgd_check(const optimizer_gradient *state, uint32_t dim,
                                      const struct optimizer_params *p, double gradient)
{
    (void)state, (void)dim, (void)p, (void)gradient;
    return OPTIMIZER_FINE;
}

SIMD_INLINE void sgd_step(float *restrict w, float *restrict state,
                          const optimizer_gradient *restrict g, uint32_t dim,
                          const struct optimizer_step *s)
{
    const float lr = s->lr, wd = s->params->weight_decay;

    (void)state;
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= lr * (g[i] + wd * w[i]);
}

BUILDS(sgd, TABLE_SPEC_SGD, NULL)

/*
 * SGD with momentum in torch.optim.SGD's form (Sutskever et al. 2013, with lr outside b):
 *
 *     b <- mu * b + g     b = 0 at first, so that the first step's b is g
 *     w <- w - lr * b     or, with Nesterov's look-ahead, w - lr * (g + mu * b)
 */
static uint32_t momentum_state_floats(uint32_t dim)
{
    return dim; /* b */
}

static void momentum_init(const float *restrict w, float *restrict b, uint32_t dim,
                          const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(b, 0, dim * sizeof *b);
}

/* A geometric sum: at most g / (1 - mu), of any mu that the table had or will have. */
#define MOMENTUM_SUM 0x1p24

static enum optimizer_fault momentum_check(const optimizer_gradient *b, uint32_t dim,
                                           const struct optimizer_params *p, double gradient)
{
    (void)p;
    return check_magnitude(b, dim, gradient * MOMENTUM_SUM);
}

SIMD_INLINE void momentum_step(float *restrict w, float *restrict b,
                               const optimizer_gradient *restrict g, uint32_t dim,
                               const struct optimizer_step *s)
{
    const float lr = s->lr, mu = s->params->momentum, wd = s->params->weight_decay;
    const bool ahead = s->params->nesterov > 0.0f;
    const float of_g = ahead ? 1.0f : 0.0f, of_b = ahead ? mu : 1.0f;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];
        float bi = mu * b[i] + gi;

        b[i] = bi;
        w[i] -= lr * (of_g * gi + of_b * bi);
    }
}

BUILDS(momentum, TABLE_SPEC_MOMENTUM, NULL)

/*
 * Adagrad: each coordinate's steps shrink with the gradients it has seen. Duchi, Hazan, Singer
 * 2011, figure 1, diagonal, with torch.optim.Adagrad's lr_decay:
 *
 *     s <- s + g^2
 *     w <- w - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
 */
enum { ADAGRAD_RATE };

static uint32_t adagrad_state_floats(uint32_t dim)
{
    return dim; /* s */
}

static void adagrad_prepare(struct optimizer_step *s)
{
    s->derived[ADAGRAD_RATE] =
        (float)((double)s->lr / (1.0 + (double)(s->t - 1) * (double)s->params->lr_decay));
}

static void adagrad_init(const float *restrict w, float *restrict sums, uint32_t dim,
                         const struct optimizer_params *p)
{
    (void)w;
    for (uint32_t i = 0; i < dim; i++)
        sums[i] = p->initial_accumulator;
}

/* A large sum only makes small steps. */
static enum optimizer_fault adagrad_check(const optimizer_gradient *sums, uint32_t dim,
                                          const struct optimizer_params *p, double gradient)
{
    (void)gradient;
    return check_sums(sums, dim, p, p->epsilon == 0.0f);
}

SIMD_INLINE void adagrad_step(float *restrict w, float *restrict sums,
                              const optimizer_gradient *restrict g, uint32_t dim,
                              const struct optimizer_step *s)
{
    const float rate = s->derived[ADAGRAD_RATE], eps = s->params->epsilon,
                wd = s->params->weight_decay;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];

        sums[i] += gi * gi;
        w[i] -= rate * (gi / (sqrtf(sums[i]) + eps));
    }
}

BUILDS(adagrad, TABLE_SPEC_ADAGRAD, adagrad_prepare)

/*
 * Row-wise Adagrad: one accumulator for a whole row (RWSAdagrad of facebookresearch/dlrm;
 * Gupta, Bengio, Weston 2014):
 *
 *     s <- s + mean over the row of g^2
 *     w <- w - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
 *
 * On a dense table a row is a block, its padding included; plain Adagrad is what one wants
 * there.
 */
#define N_LANES 16u

enum { ROWWISE_ADAGRAD_RATE };

static uint32_t rowwise_adagrad_state_floats(uint32_t dim)
{
    (void)dim;
    return 1; /* s */
}

static void rowwise_adagrad_prepare(struct optimizer_step *s)
{
    s->derived[ROWWISE_ADAGRAD_RATE] =
        (float)((double)s->lr / (1.0 + (double)(s->t - 1) * (double)s->params->lr_decay));
}

static void rowwise_adagrad_init(const float *restrict w, float *restrict sum, uint32_t dim,
                                 const struct optimizer_params *p)
{
    (void)w, (void)dim;
    sum[0] = p->initial_accumulator;
}

static enum optimizer_fault rowwise_adagrad_check(const optimizer_gradient *sum, uint32_t dim,
                                                  const struct optimizer_params *p,
                                                  double gradient)
{
    (void)dim, (void)gradient;
    return check_sums(sum, 1, p, p->epsilon == 0.0f);
}

typedef float lanes16 __attribute__((vector_size(64)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));

/* The upper half onto the lower one until one lane is left. */
SIMD_INLINE float fold(const lanes16 *sums)
{
    lanes8 low8, high8;
    lanes4 low4, high4;

    memcpy(&low8, sums, sizeof low8);
    memcpy(&high8, (const char *)sums + sizeof low8, sizeof high8);
    low8 += high8;
    memcpy(&low4, &low8, sizeof low4);
    memcpy(&high4, (const char *)&low8 + sizeof low4, sizeof high4);
    low4 += high4;
    return (low4[0] + low4[2]) + (low4[1] + low4[3]);
}

/* In lanes, whose order of adding is the same in every build, however wide its vectors are. Said
 * as a vector, of which compilers make what they have; of a loop over an array they do not. */
SIMD_INLINE float sum_of_squares(const float *restrict w, const optimizer_gradient *restrict g,
                                 uint32_t dim, float wd)
{
    lanes16 sums = { 0 }, wi, gi;
    uint32_t i = 0;

    for (; i + N_LANES <= dim; i += N_LANES) {
        memcpy(&wi, w + i, sizeof wi);
        memcpy(&gi, g + i, sizeof gi);
        gi += wd * wi;
        sums += gi * gi;
    }
    if (i < dim) {
        float square[N_LANES] = { 0 };

        for (uint32_t j = 0; i < dim; i++, j++) {
            float rest = g[i] + wd * w[i];

            square[j] = rest * rest;
        }
        memcpy(&gi, square, sizeof gi);
        sums += gi;
    }
    return fold(&sums);
}

SIMD_INLINE void rowwise_adagrad_step(float *restrict w, float *restrict sum,
                                      const optimizer_gradient *restrict g, uint32_t dim,
                                      const struct optimizer_step *s)
{
    const float wd = s->params->weight_decay;
    float rate;

    sum[0] += sum_of_squares(w, g, dim, wd) / (float)dim;
    rate = s->derived[ROWWISE_ADAGRAD_RATE] / (sqrtf(sum[0]) + s->params->epsilon);
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= rate * (g[i] + wd * w[i]);
}

BUILDS(rowwise_adagrad, TABLE_SPEC_ROWWISE_ADAGRAD, rowwise_adagrad_prepare)

/*
 * Adam, Kingma and Ba 2015, algorithm 1, in the two forms of PyTorch, which differ in what eps
 * is added to:
 *
 *     m <- b1 * m + (1 - b1) * g,   v <- b2 * v + (1 - b2) * g^2
 *     c1 = 1 - b1^t,   c2 = 1 - b2^t
 *     dense tables (Adam):         w <- w - lr / c1 * m / (sqrt(v) / sqrt(c2) + eps)
 *     sparse tables (SparseAdam):  w <- w - lr * sqrt(c2) / c1 * m / (sqrt(v) + eps)
 *
 * On sparse tables rows that a push does not name keep their moments, while t goes on: it is
 * the table's.
 */
enum { ADAM_BETA1, ADAM_REST1, ADAM_BETA2, ADAM_REST2, ADAM_RATE, ADAM_ROOT_SCALE };

static uint32_t adam_state_floats(uint32_t dim)
{
    return 2 * dim; /* m, then v */
}

/* The decimal that a person meant. 1 - 0.999f is off by 1.3e-5 of itself, which is more than
 * all other roundings of a step; floats in [0.5, 1) tell all decimals of 7 places apart, so
 * that the one meant can be had back. */
static double decimal(float beta)
{
    return rint((double)beta * 1e7) / 1e7;
}

static void adam_prepare(struct optimizer_step *s)
{
    double b1 = decimal(s->params->beta1), b2 = decimal(s->params->beta2), t = (double)s->t;
    double correction1 = 1.0 - pow(b1, t), root2 = sqrt(1.0 - pow(b2, t)),
           rate = (double)s->lr / correction1;

    s->derived[ADAM_BETA1] = (float)b1;
    s->derived[ADAM_REST1] = (float)(1.0 - b1);
    s->derived[ADAM_BETA2] = (float)b2;
    s->derived[ADAM_REST2] = (float)(1.0 - b2);
    s->derived[ADAM_RATE] = (float)(s->dense ? rate : rate * root2);
    s->derived[ADAM_ROOT_SCALE] = (float)(s->dense ? 1.0 / root2 : 1.0);
}

static void adam_init(const float *restrict w, float *restrict state, uint32_t dim,
                      const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(state, 0, 2 * dim * sizeof *state);
}

/* m is a mean of gradients, whose two factors are rounded: to a sum of up to 1.7. v says nothing of m: with betas of
 * its own it may have fallen faster, even to 0. */
#define ADAM_MEAN 2.0

static enum optimizer_fault adam_check(const optimizer_gradient *state, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    enum optimizer_fault fault = check_sums(state + dim, dim, p, false);

    return fault ? fault : check_magnitude(state, dim, ADAM_MEAN * gradient);
}

SIMD_INLINE void adam_step(float *restrict w, float *restrict state,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const float b1 = s->derived[ADAM_BETA1], rest1 = s->derived[ADAM_REST1],
                b2 = s->derived[ADAM_BETA2];
    const float rest2 = s->derived[ADAM_REST2], rate = s->derived[ADAM_RATE],
                root_scale = s->derived[ADAM_ROOT_SCALE];
    const float eps = s->params->epsilon, wd = s->params->weight_decay;
    float *m = state, *v = state + dim;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];
        float mi = b1 * m[i] + rest1 * gi, vi = b2 * v[i] + rest2 * (gi * gi);

        m[i] = mi;
        v[i] = vi;
        w[i] -= rate * (mi / (sqrtf(vi) * root_scale + eps));
    }
}

BUILDS(adam, TABLE_SPEC_ADAM, adam_prepare)

/*
 * FTRL-proximal. McMahan et al. 2013, algorithm 1, per coordinate:
 *
 *     sigma = (sqrt(n + g^2) - sqrt(n)) / alpha
 *     z <- z + g - sigma * w,   n <- n + g^2
 *     w <- 0 if |z| <= l1, else -(z - sgn(z) * l1) / ((beta + sqrt(n)) / alpha + l2)
 *
 * alpha is the learning rate before the schedule, always: z is a sum over all steps at one
 * alpha, and another alpha would move a row that has no gradient.
 *
 * The weights are a function of z and n, so a start at w0 needs the z that gives w0: the last
 * line solved for z.
 */
static uint32_t ftrl_state_floats(uint32_t dim)
{
    return 2 * dim; /* z, then n */
}

static void ftrl_init(const float *restrict w, float *restrict state, uint32_t dim,
                      const struct optimizer_params *p)
{
    const float n0 = p->initial_accumulator;
    const float slope = (p->ftrl_beta + sqrtf(n0)) / p->learning_rate + p->ftrl_l2;
    float *z = state, *n = state + dim;

    for (uint32_t i = 0; i < dim; i++) {
        z[i] = w[i] == 0.0f ? 0.0f : -w[i] * slope - copysignf(p->ftrl_l1, w[i]);
        n[i] = n0;
    }
}

/* A sum that overflows makes z NaN. At the largest gradients that are admitted, this is a hundred million pushes. */
#define FTRL_SUM_MAX (FLT_MAX / 4)
#define FTRL_ROUNDING 2.0

/* z and n are the next weight, and so it may be as large as any that is assigned. */
static enum optimizer_fault ftrl_check(const optimizer_gradient *state, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    const double alpha = (double)p->learning_rate, beta = (double)p->ftrl_beta,
                 l1 = (double)p->ftrl_l1, l2 = (double)p->ftrl_l2,
                 most = FTRL_ROUNDING * (double)SECTION_ASSIGN_MAX;
    const optimizer_gradient *z = state, *n = state + dim;
    enum optimizer_fault fault = check_sums(n, dim, p, beta == 0 && l2 == 0);

    (void)gradient;
    if (!fault)
        fault = check_magnitude(n, dim, (double)FTRL_SUM_MAX);
    for (uint32_t i = 0; i < dim && !fault; i++)
        if (fabs((double)z[i]) > l1 + ((beta + sqrt((double)n[i])) / alpha + l2) * most)
            fault = OPTIMIZER_LARGE;
    return fault;
}

SIMD_INLINE void ftrl_step(float *restrict w, float *restrict state,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const struct optimizer_params *p = s->params;
    const float alpha = p->learning_rate, beta = p->ftrl_beta, l1 = p->ftrl_l1, l2 = p->ftrl_l2;
    const float wd = p->weight_decay;
    float *z = state, *n = state + dim;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];
        float n_next = n[i] + gi * gi, root = sqrtf(n_next);
        float zi = z[i] + (gi - (root - sqrtf(n[i])) / alpha * w[i]);

        z[i] = zi;
        n[i] = n_next;
        w[i] =
            fabsf(zi) <= l1 ? 0.0f : -(zi - copysignf(l1, zi)) / ((beta + root) / alpha + l2);
    }
}

BUILDS(ftrl, TABLE_SPEC_FTRL, NULL)

/* --- the catalogue --- */

#define BUILDS_OF(name)                                                                  \
    {                                                                                    \
        [SIMD_PLAIN] = &name, [SIMD_AVX2] = &name##_avx2, [SIMD_AVX512] = &name##_avx512 \
    }

/* To add an optimizer: its functions above, BUILDS() behind them, and a line here. */
static const struct optimizer *const catalog[][SIMD_END] = {
    [TABLE_SPEC_SGD] = BUILDS_OF(sgd),
    [TABLE_SPEC_MOMENTUM] = BUILDS_OF(momentum),
    [TABLE_SPEC_ADAGRAD] = BUILDS_OF(adagrad),
    [TABLE_SPEC_ROWWISE_ADAGRAD] = BUILDS_OF(rowwise_adagrad),
    [TABLE_SPEC_ADAM] = BUILDS_OF(adam),
    [TABLE_SPEC_FTRL] = BUILDS_OF(ftrl),
};

const struct optimizer *optimizer_build(enum table_spec_optim id, enum simd build)
{
    return catalog[id][build];
}

const struct optimizer *optimizer_find(enum table_spec_optim id)
{
    return (size_t)id < COUNT_OF(catalog) ? catalog[id][simd_best()] : NULL;
}

enum optimizer_fault optimizer_check_state(const struct optimizer *optim,
                                           const optimizer_gradient *state,
                                           const struct table_spec *spec, float gradient_max)
{
    const uint32_t n = optim->state_floats(spec->dim);
    bool is_finite = true;

    for (uint32_t i = 0; i < n; i++)
        is_finite &= fabsf(state[i]) <= FLT_MAX; /* false for NaN */
    if (!is_finite)
        return OPTIMIZER_NOT_FINITE;
    return optim->check(state, spec->dim, &spec->params,
                        (double)gradient_max +
                            (double)spec->params.weight_decay * (double)SECTION_ASSIGN_MAX);
}

const char *optimizer_fault_text(enum optimizer_fault fault)
{
    static const char *const texts[] = {
        [OPTIMIZER_FINE] = "a state",
        [OPTIMIZER_NOT_FINITE] = "NaN or infinity in its state",
        [OPTIMIZER_NEGATIVE] = "a negative sum of squares in its state",
        [OPTIMIZER_ZERO] = "a sum of squares of 0 in its state, by which this table divides",
        [OPTIMIZER_LARGE] = "a state that is larger than any training leads to",
    };

    _Static_assert(COUNT_OF(texts) == OPTIMIZER_FAULT_END, "a text for each fault");
    return texts[fault];
}

static double decay(const struct lr_schedule *schedule, uint64_t clock)
{
    double x = clock > schedule->decay_start ? (double)(clock - schedule->decay_start) : 0.0;
    double span = schedule->decay_clocks ? (double)schedule->decay_clocks : 1.0;
    double factor = 1.0;

    switch (schedule->decay) {
    case TABLE_SPEC_DECAY_LINEAR:
        factor = 1.0 - x / span;
        break;
    case TABLE_SPEC_DECAY_EXP:
        factor = pow((double)schedule->decay_rate, x / span);
        break;
    case TABLE_SPEC_DECAY_INV_SQRT:
        factor = 1.0 / sqrt(1.0 + x / span);
        break;
    case TABLE_SPEC_DECAY_COSINE:
        factor = (1.0 + cos(acos(-1.0) * fmin(1.0, x / span))) / 2.0;
        return (double)schedule->decay_floor + (1.0 - (double)schedule->decay_floor) * factor;
    case TABLE_SPEC_DECAY_STEP:
        factor = pow((double)schedule->decay_rate, floor(x / span));
        break;
    case TABLE_SPEC_DECAY_NONE:
    case TABLE_SPEC_DECAY_PLATEAU:
    case TABLE_SPEC_DECAY_END:
        return 1.0;
    }
    return fmax((double)schedule->decay_floor, factor);
}

float optimizer_rate(float learning_rate, const struct lr_schedule *schedule, uint64_t clock)
{
    double rate = (double)learning_rate * decay(schedule, clock);

    if (clock < schedule->warmup_clocks)
        rate *= ((double)clock + 1.0) / (double)schedule->warmup_clocks;
    return (float)rate;
}

struct optimizer_step optimizer_step_at(const struct optimizer *optim,
                                        const struct table_spec *spec, uint64_t clock,
                                        uint64_t t)
{
    struct optimizer_step step = {
        .params = &spec->params,
        .lr = optimizer_rate(spec->params.learning_rate, &spec->schedule, clock),
        .t = t,
        .dense = spec->kind == TABLE_SPEC_DENSE,
    };

    if (optim->prepare)
        optim->prepare(&step);
    return step;
}
