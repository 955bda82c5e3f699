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
#include "server/core/optim_builds.h"

#include <math.h>
#include <string.h>

#define N_LANES 16u

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
SIMD_INLINE float sum_of_squares(const float *restrict w, const optim_gradient *restrict g,
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

SIMD_INLINE void step(float *restrict w, float *restrict sum, const optim_gradient *restrict g,
                      uint32_t dim, const struct optim_step *s)
{
    const float wd = s->params->weight_decay;
    float rate;

    sum[0] += sum_of_squares(w, g, dim, wd) / (float)dim;
    rate = s->derived[RATE] / (sqrtf(sum[0]) + s->params->epsilon);
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= rate * (g[i] + wd * w[i]);
}

OPTIM_BUILDS(rowwise_adagrad, SPEC_ROWWISE_ADAGRAD, prepare)
