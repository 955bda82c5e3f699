/* Plain gradient descent: w <- w - lr * g. */
#include "server/core/optim_builds.h"

static uint32_t state_floats(uint32_t dim)
{
    (void)dim;
    return 0;
}

static void init(const float *restrict w, float *restrict state, uint32_t dim,
                 const struct optim_params *p)
{
    (void)w, (void)state, (void)dim, (void)p;
}

SIMD_INLINE void step(float *restrict w, float *restrict state,
                      const optim_gradient *restrict g, uint32_t dim,
                      const struct optim_step *s)
{
    const float lr = s->lr, wd = s->params->weight_decay;

    (void)state;
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= lr * (g[i] + wd * w[i]);
}

OPTIM_BUILDS(sgd, SPEC_SGD, NULL)
