#include "server/core/row_init.h"

#include <math.h>
#include <string.h>

#include "common/hash.h"

/* hash_unit() by way of an int32, which is exact and which every vector can make a float of. */
SIMD_INLINE void uniform(uint64_t h, float scale, float *weights, uint32_t dim)
{
    const uint64_t mixed = hash_mix(h);

    for (uint32_t i = 0; i < dim; i++) {
        int32_t upper = (int32_t)(hash_mix(mixed ^ i) >> 40);

        weights[i] = (2.0f * ((float)upper * 0x1p-24f) - 1.0f) * scale;
    }
}

#define UNIFORM_BUILD(suffix, target)                                                          \
    target static void uniform_##suffix(uint64_t h, float scale, float *weights, uint32_t dim) \
    {                                                                                          \
        uniform(h, scale, weights, dim);                                                       \
    }

UNIFORM_BUILD(plain, SIMD_TARGET_PLAIN)
UNIFORM_BUILD(avx2, SIMD_TARGET_AVX2)
UNIFORM_BUILD(avx512, SIMD_TARGET_AVX512)

static void (*const uniform_builds[SIMD_END])(uint64_t, float, float *, uint32_t) = {
    [SIMD_PLAIN] = uniform_plain,
    [SIMD_AVX2] = uniform_avx2,
    [SIMD_AVX512] = uniform_avx512,
};

/* Box and Muller 1958. In double, so that the last bit of a library's sine does not reach the
 * float. */
static void row_init_normal(uint64_t h, float scale, float *weights, uint32_t dim)
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

void row_init_row_build(const struct table_spec *spec, uint64_t key, enum simd build,
                        float *weights)
{
    uint64_t h = hash_mix2(spec->seed, key);

    switch (spec->init) {
    case TABLE_SPEC_INIT_UNIFORM:
        uniform_builds[build](h, spec->init_scale, weights, spec->dim);
        break;
    case TABLE_SPEC_INIT_NORMAL:
        row_init_normal(h, spec->init_scale, weights, spec->dim);
        break;
    case TABLE_SPEC_INIT_ZERO:
    case TABLE_SPEC_INIT_END:
        memset(weights, 0, spec->dim * sizeof *weights);
        break;
    }
}

void row_init_row(const struct table_spec *spec, uint64_t key, float *weights)
{
    row_init_row_build(spec, key, simd_best(), weights);
}
