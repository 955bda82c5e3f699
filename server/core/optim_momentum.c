/*
 * SGD with momentum in torch.optim.SGD's form (Sutskever et al. 2013, with lr outside b):
 *
 *     b <- mu * b + g     b = 0 at first, so that the first step's b is g
 *     w <- w - lr * b     or, with Nesterov's look-ahead, w - lr * (g + mu * b)
 */
#include "server/core/optim_builds.h"

#include <string.h>

static uint32_t state_floats(uint32_t dim)
{
    return dim; /* b */
}

static void init(const float *restrict w, float *restrict b, uint32_t dim,
                 const struct optim_params *p)
{
    (void)w, (void)p;
    memset(b, 0, dim * sizeof *b);
}

SIMD_INLINE void step(float *restrict w, float *restrict b, const optim_gradient *restrict g,
                      uint32_t dim, const struct optim_step *s)
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

OPTIM_BUILDS(momentum, SPEC_MOMENTUM, NULL)
