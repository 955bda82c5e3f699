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
#include "server/core/optim.h"

#include <math.h>

enum { RATE };

static uint32_t state_floats(uint32_t dim)
{
    (void)dim;
    return 1; /* s */
}

static void prepare(struct optim_step *s)
{
    s->derived[RATE] =
        (float)((double)s->lr / (1.0 + (double)(s->t - 1) * (double)s->params->lr_decay));
}

static void init(const float *restrict w, float *restrict sum, uint32_t dim,
                 const struct optim_params *p)
{
    (void)w, (void)dim;
    sum[0] = p->initial_accumulator;
}

static void step(float *restrict w, float *restrict sum, const float *restrict g, uint32_t dim,
                 const struct optim_step *s)
{
    const float wd = s->params->weight_decay;
    float squares = 0.0f, rate;

    for (uint32_t i = 0; i < dim; i++) {
        float gi = g[i] + wd * w[i];

        squares += gi * gi;
    }
    sum[0] += squares / (float)dim;
    rate = s->derived[RATE] / (sqrtf(sum[0]) + s->params->epsilon);
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= rate * (g[i] + wd * w[i]);
}

const struct optim optim_rowwise_adagrad = { .id = SPEC_ROWWISE_ADAGRAD,
                                             .state_floats = state_floats,
                                             .prepare = prepare,
                                             .init = init,
                                             .step = step };
