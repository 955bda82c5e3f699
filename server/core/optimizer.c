/*
 * The optimizers that step each weight by itself, side by side, and the catalogue of all. Each has five functions,
 * X_state_floats, X_prepare (where it derives values from a step), X_init, X_check and X_step, whose contracts are at
 * struct optimizer. BUILDS() compiles X_step for each width of vectors.
 */
#include "server/core/optimizer.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "proto/section.h"
#include "server/core/optimizer_builds.h"
#include "server/core/optimizer_row.h"

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
    return optimizer_check_magnitude(b, dim, gradient * MOMENTUM_SUM);
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
static uint32_t adagrad_state_floats(uint32_t dim)
{
    return dim; /* s */
}

static void adagrad_prepare(struct optimizer_step *s)
{
    s->derived[OPTIMIZER_ADAGRAD_RATE] =
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
    return optimizer_check_sums(sums, dim, p, p->epsilon == 0.0f);
}

SIMD_INLINE void adagrad_step(float *restrict w, float *restrict sums,
                              const optimizer_gradient *restrict g, uint32_t dim,
                              const struct optimizer_step *s)
{
    const float rate = s->derived[OPTIMIZER_ADAGRAD_RATE], eps = s->params->epsilon,
                wd = s->params->weight_decay;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];

        sums[i] += gi * gi;
        w[i] -= rate * (gi / (sqrtf(sums[i]) + eps));
    }
}

BUILDS(adagrad, TABLE_SPEC_ADAGRAD, adagrad_prepare)

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
static uint32_t adam_state_floats(uint32_t dim)
{
    return 2 * dim; /* m, then v */
}

static void adam_prepare(struct optimizer_step *s)
{
    const struct optimizer_corrections c = optimizer_derive_means(s);
    const double rate = (double)s->lr / c.mean;

    s->derived[OPTIMIZER_RATE] = (float)(s->dense ? rate : rate * c.root);
    s->derived[OPTIMIZER_ROOT_SCALE] = (float)(s->dense ? 1.0 / c.root : 1.0);
}

static void adam_init(const float *restrict w, float *restrict state, uint32_t dim,
                      const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(state, 0, 2 * dim * sizeof *state);
}

static enum optimizer_fault adam_check(const optimizer_gradient *state, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    return optimizer_check_means(state, dim, p, gradient);
}

SIMD_INLINE void adam_step(float *restrict w, float *restrict state,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const float b1 = s->derived[OPTIMIZER_BETA1], rest1 = s->derived[OPTIMIZER_REST1],
                b2 = s->derived[OPTIMIZER_BETA2];
    const float rest2 = s->derived[OPTIMIZER_REST2], rate = s->derived[OPTIMIZER_RATE],
                root_scale = s->derived[OPTIMIZER_ROOT_SCALE];
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
    enum optimizer_fault fault = optimizer_check_sums(n, dim, p, beta == 0 && l2 == 0);

    (void)gradient;
    if (!fault)
        fault = optimizer_check_magnitude(n, dim, (double)FTRL_SUM_MAX);
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

/*
 * AdamW: Adam with weight decay that is no part of the gradient. Loshchilov and Hutter 2019, algorithm 2, in
 * torch.optim.AdamW's form; m, v and their corrections as at adam_step():
 *
 *     w <- w * (1 - lr * weight_decay)
 *     w <- w - the step of Adam
 *
 * All rows that have had a gradient decay at each step of the table, on sparse tables lazily: those that a push does
 * not name make up for it at the next push that does, w <- w * (1 - lr * weight_decay)^n, n the steps since their last
 * one, lr that of the push. With a constant rate this is what decaying all rows at every step leads to. Until then
 * pulls show the row as its last push left it.
 */
static uint32_t adamw_state_floats(uint32_t dim)
{
    return 2 * dim + 1; /* m, then v, then the step of the last gradient */
}

/* SECTION_STEPS_MAX, which is below 2^48, as the float that it becomes. */
#define STEPS_MAX 0x1p48f

/* A float holds 24 bits of the step count. Beyond them rows decay by several steps at once or by none; the sum of
 * what they decay by stays that of the counts. */
static void prepare_decay(struct optimizer_step *s)
{
    s->derived[OPTIMIZER_DECAY] =
        (float)(1.0 - (double)s->lr * (double)s->params->weight_decay);
    s->derived[OPTIMIZER_NOW] = (float)s->t;
}

/* The factor of all steps since `then`, the row's last; 0: it had none. */
static float decay_since(const struct optimizer_step *s, float then)
{
    const double n = then > 0 ? (double)s->derived[OPTIMIZER_NOW] - (double)then : 1;

    if (n == 1)
        return s->derived[OPTIMIZER_DECAY];
    return n > 0 ? (float)exp(n * log1p(-(double)s->lr * (double)s->params->weight_decay)) : 1;
}

/* A count of steps, as rows keep it. */
static enum optimizer_fault check_then(float then)
{
    return then >= 0 && then <= STEPS_MAX && floorf(then) == then ? OPTIMIZER_FINE
                                                                  : OPTIMIZER_NO_STEP;
}

static void adamw_prepare(struct optimizer_step *s)
{
    adam_prepare(s);
    prepare_decay(s);
}

static void adamw_init(const float *restrict w, float *restrict state, uint32_t dim,
                       const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(state, 0, (2 * dim + 1) * sizeof *state);
}

static enum optimizer_fault adamw_check(const optimizer_gradient *state, uint32_t dim,
                                        const struct optimizer_params *p, double gradient)
{
    enum optimizer_fault fault = adam_check(state, dim, p, gradient);

    return fault ? fault : check_then(state[2 * dim]);
}

SIMD_INLINE void adamw_step(float *restrict w, float *restrict state,
                            const optimizer_gradient *restrict g, uint32_t dim,
                            const struct optimizer_step *s)
{
    const float b1 = s->derived[OPTIMIZER_BETA1], rest1 = s->derived[OPTIMIZER_REST1],
                b2 = s->derived[OPTIMIZER_BETA2];
    const float rest2 = s->derived[OPTIMIZER_REST2], rate = s->derived[OPTIMIZER_RATE],
                root_scale = s->derived[OPTIMIZER_ROOT_SCALE];
    const float eps = s->params->epsilon, kept = decay_since(s, state[2 * dim]);
    float *m = state, *v = state + dim;

    for (uint32_t i = 0; i < dim; i++) {
        float mi = b1 * m[i] + rest1 * g[i], vi = b2 * v[i] + rest2 * (g[i] * g[i]);

        m[i] = mi;
        v[i] = vi;
        w[i] = kept * w[i] - rate * (mi / (sqrtf(vi) * root_scale + eps));
    }
    state[2 * dim] = s->derived[OPTIMIZER_NOW];
}

BUILDS(adamw, TABLE_SPEC_ADAMW, adamw_prepare)

/*
 * Lion: each weight moves by the learning rate, or not at all. Chen et al. 2023 (Symbolic Discovery of Optimization
 * Algorithms), algorithm 2:
 *
 *     w <- w * (1 - lr * weight_decay)      as with AdamW, lazily
 *     w <- w - lr * sign(b1 * m + (1 - b1) * g)      sign(0) = 0
 *     m <- b2 * m + (1 - b2) * g
 */
static uint32_t lion_state_floats(uint32_t dim)
{
    return dim + 1; /* m, then the step of the last gradient */
}

static void lion_prepare(struct optimizer_step *s)
{
    optimizer_derive_means(s);
    prepare_decay(s);
}

static void lion_init(const float *restrict w, float *restrict state, uint32_t dim,
                      const struct optimizer_params *p)
{
    (void)w, (void)p;
    memset(state, 0, (dim + 1) * sizeof *state);
}

static enum optimizer_fault lion_check(const optimizer_gradient *state, uint32_t dim,
                                       const struct optimizer_params *p, double gradient)
{
    enum optimizer_fault fault =
        optimizer_check_magnitude(state, dim, OPTIMIZER_MEAN * gradient);

    (void)p;
    return fault ? fault : check_then(state[dim]);
}

SIMD_INLINE void lion_step(float *restrict w, float *restrict state,
                           const optimizer_gradient *restrict g, uint32_t dim,
                           const struct optimizer_step *s)
{
    const float b1 = s->derived[OPTIMIZER_BETA1], rest1 = s->derived[OPTIMIZER_REST1],
                b2 = s->derived[OPTIMIZER_BETA2], rest2 = s->derived[OPTIMIZER_REST2];
    const float lr = s->lr, kept = decay_since(s, state[dim]);
    float *m = state;

    for (uint32_t i = 0; i < dim; i++) {
        float towards = b1 * m[i] + rest1 * g[i];
        float up = towards > 0 ? lr : 0, down = towards < 0 ? lr : 0;

        w[i] = kept * w[i] - (up - down);
        m[i] = b2 * m[i] + rest2 * g[i];
    }
    state[dim] = s->derived[OPTIMIZER_NOW];
}

BUILDS(lion, TABLE_SPEC_LION, lion_prepare)

/* --- the catalogue --- */

static const struct optimizer *const sgd_builds[SIMD_END] = BUILDS_OF(sgd);
static const struct optimizer *const momentum_builds[SIMD_END] = BUILDS_OF(momentum);
static const struct optimizer *const adagrad_builds[SIMD_END] = BUILDS_OF(adagrad);
static const struct optimizer *const adam_builds[SIMD_END] = BUILDS_OF(adam);
static const struct optimizer *const ftrl_builds[SIMD_END] = BUILDS_OF(ftrl);
static const struct optimizer *const adamw_builds[SIMD_END] = BUILDS_OF(adamw);
static const struct optimizer *const lion_builds[SIMD_END] = BUILDS_OF(lion);

/* To add an optimizer: its functions, BUILDS() behind them, its array of builds, and a line here. */
static const struct optimizer *const *const catalog[] = {
    [TABLE_SPEC_SGD] = sgd_builds,
    [TABLE_SPEC_MOMENTUM] = momentum_builds,
    [TABLE_SPEC_ADAGRAD] = adagrad_builds,
    [TABLE_SPEC_ROWWISE_ADAGRAD] = optimizer_row_adagrad,
    [TABLE_SPEC_ADAM] = adam_builds,
    [TABLE_SPEC_FTRL] = ftrl_builds,
    [TABLE_SPEC_ADAMW] = adamw_builds,
    [TABLE_SPEC_LION] = lion_builds,
    [TABLE_SPEC_LAMB] = optimizer_row_lamb,
    [TABLE_SPEC_LARS] = optimizer_row_lars,
    [TABLE_SPEC_SM3] = optimizer_row_sm3,
    [TABLE_SPEC_CAME] = optimizer_row_came,
    [TABLE_SPEC_SM3_MATRIX] = optimizer_row_sm3_matrix,
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
    const uint32_t n = table_spec_state_floats(spec);
    bool is_finite = true;

    for (uint32_t i = 0; i < n; i++)
        is_finite &= fabsf(state[i]) <= FLT_MAX; /* false for NaN */
    if (!is_finite)
        return OPTIMIZER_NOT_FINITE;
    if (spec->row_decay > 0 && check_then(state[n - 1]))
        return OPTIMIZER_NO_STEP;
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
        [OPTIMIZER_NO_STEP] = "a number in its state that is no count of steps",
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
