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
#include "server/core/optim_builds.h"

#include <math.h>

static uint32_t state_floats(uint32_t dim)
{
    return 2 * dim; /* z, then n */
}

static void init(const float *restrict w, float *restrict state, uint32_t dim,
                 const struct optim_params *p)
{
    const float n0 = p->initial_accumulator;
    const float slope = (p->ftrl_beta + sqrtf(n0)) / p->learning_rate + p->ftrl_l2;
    float *z = state, *n = state + dim;

    for (uint32_t i = 0; i < dim; i++) {
        z[i] = w[i] == 0.0f ? 0.0f : -w[i] * slope - copysignf(p->ftrl_l1, w[i]);
        n[i] = n0;
    }
}

SIMD_INLINE void step(float *restrict w, float *restrict state,
                      const optim_gradient *restrict g, uint32_t dim,
                      const struct optim_step *s)
{
    const struct optim_params *p = s->params;
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

OPTIM_BUILDS(ftrl, SPEC_FTRL, NULL)
