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
#include "server/core/optim_builds.h"

#include <math.h>
#include <string.h>

enum { BETA1, REST1, BETA2, REST2, RATE, ROOT_SCALE };

static uint32_t state_floats(uint32_t dim)
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

static void prepare(struct optim_step *s)
{
    double b1 = decimal(s->params->beta1), b2 = decimal(s->params->beta2), t = (double)s->t;
    double correction1 = 1.0 - pow(b1, t), root2 = sqrt(1.0 - pow(b2, t)),
           rate = (double)s->lr / correction1;

    s->derived[BETA1] = (float)b1;
    s->derived[REST1] = (float)(1.0 - b1);
    s->derived[BETA2] = (float)b2;
    s->derived[REST2] = (float)(1.0 - b2);
    s->derived[RATE] = (float)(s->dense ? rate : rate * root2);
    s->derived[ROOT_SCALE] = (float)(s->dense ? 1.0 / root2 : 1.0);
}

static void init(const float *restrict w, float *restrict state, uint32_t dim,
                 const struct optim_params *p)
{
    (void)w, (void)p;
    memset(state, 0, 2 * dim * sizeof *state);
}

SIMD_INLINE void step(float *restrict w, float *restrict state,
                      const optim_gradient *restrict g, uint32_t dim,
                      const struct optim_step *s)
{
    const float b1 = s->derived[BETA1], rest1 = s->derived[REST1], b2 = s->derived[BETA2];
    const float rest2 = s->derived[REST2], rate = s->derived[RATE],
                root_scale = s->derived[ROOT_SCALE];
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

OPTIM_BUILDS(adam, SPEC_ADAM, prepare)
