/*
 * Adagrad: each coordinate's steps shrink with the gradients it has seen. Duchi, Hazan, Singer
 * 2011, figure 1, diagonal, with torch.optim.Adagrad's lr_decay:
 *
 *     s <- s + g^2
 *     w <- w - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
 */
#include "server/core/optim_builds.h"

#include <math.h>

enum { RATE };

static uint32_t state_floats(uint32_t dim)
{
    return dim; /* s */
}

static void prepare(struct optim_step *s)
{
    s->derived[RATE] =
        (float)((double)s->lr / (1.0 + (double)(s->t - 1) * (double)s->params->lr_decay));
}

static void init(const float *restrict w, float *restrict sums, uint32_t dim,
                 const struct optim_params *p)
{
    (void)w;
    for (uint32_t i = 0; i < dim; i++)
        sums[i] = p->initial_accumulator;
}

SIMD_INLINE void step(float *restrict w, float *restrict sums, const optim_gradient *restrict g,
                      uint32_t dim, const struct optim_step *s)
{
    const float rate = s->derived[RATE], eps = s->params->epsilon, wd = s->params->weight_decay;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];

        sums[i] += gi * gi;
        w[i] -= rate * (gi / (sqrtf(sums[i]) + eps));
    }
}

OPTIM_BUILDS(adagrad, SPEC_ADAGRAD, prepare)
