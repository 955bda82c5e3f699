#include "server/core/init.h"

#include <math.h>
#include <string.h>

#include "common/hash.h"

static void init_uniform(uint64_t h, float scale, float *weights, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        weights[i] = (2.0f * hash_unit(hash_mix2(h, i)) - 1.0f) * scale;
}

/* Box and Muller 1958. In double, so that the last bit of a library's sine does not reach the
 * float. */
static void init_normal(uint64_t h, float scale, float *weights, uint32_t dim)
{
    const double two_pi = 6.283185307179586;

    for (uint32_t i = 0; i < dim; i += 2) {
        double u = 1.0 - (double)hash_unit(hash_mix2(h, i)); /* in (0, 1]: it has a logarithm */
        double angle = two_pi * (double)hash_unit(hash_mix2(h, i + 1));
        double radius = sqrt(-2.0 * log(u)) * (double)scale;

        weights[i] = (float)(radius * cos(angle));
        if (i + 1 < dim)
            weights[i + 1] = (float)(radius * sin(angle));
    }
}

void init_row(const struct table_spec *spec, uint64_t key, float *weights)
{
    uint64_t h = hash_mix2(spec->seed, key);

    switch (spec->init) {
    case SPEC_INIT_UNIFORM:
        init_uniform(h, spec->init_scale, weights, spec->dim);
        break;
    case SPEC_INIT_NORMAL:
        init_normal(h, spec->init_scale, weights, spec->dim);
        break;
    case SPEC_INIT_ZERO:
    case SPEC_INIT_END:
        memset(weights, 0, spec->dim * sizeof *weights);
        break;
    }
}
