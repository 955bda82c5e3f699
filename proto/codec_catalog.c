#include "proto/codec_catalog.h"

#include <assert.h>
#include <string.h>

#include "proto/codec.h"
#include "proto/codec_scalar.h"

#define BUILDS_OF(name)                                                   \
    {                                                                     \
        [SIMD_PLAIN] = &codec_##name, [SIMD_AVX2] = &codec_##name##_avx2, \
        [SIMD_AVX512] = &codec_##name##_avx512                            \
    }

static const struct codec *const codecs[CODEC_ID_END][SIMD_END] = {
    [CODEC_FP32] = BUILDS_OF(fp32),     [CODEC_BF16] = BUILDS_OF(bf16),
    [CODEC_FP16] = BUILDS_OF(fp16),     [CODEC_INT8] = BUILDS_OF(int8),
    [CODEC_ONEBIT] = BUILDS_OF(onebit), [CODEC_TOPK] = BUILDS_OF(topk),
};

const struct codec *codec_build(enum codec_id id, enum simd build)
{
    return codecs[id][build];
}

const struct codec *codec_by_id(uint32_t id)
{
    return id < CODEC_ID_END ? codecs[id][simd_best()] : NULL;
}

const struct codec *codec_find(const char *name)
{
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        if (strcmp(codecs[id][SIMD_PLAIN]->name, name) == 0)
            return codec_by_id(id);
    return NULL;
}

/* want = grad + residual */
SIMD_INLINE void add(const float *restrict grad, const float *restrict residual, uint32_t dim,
                     float *restrict want)
{
    for (size_t i = 0; i < dim; i++)
        want[i] = grad[i] + residual[i];
}

SIMD_INLINE void keep_lost(const float *restrict want, const float *restrict got, uint32_t dim,
                           float *restrict residual)
{
    for (size_t i = 0; i < dim; i++)
        residual[i] = codec_scalar_residual(want[i], got[i]);
}

#define FEEDBACK_BUILD(suffix, target)                                             \
    target static void add_##suffix(const float *restrict grad,                    \
                                    const float *restrict residual, uint32_t dim,  \
                                    float *restrict want)                          \
    {                                                                              \
        add(grad, residual, dim, want);                                            \
    }                                                                              \
    target static void keep_lost_##suffix(const float *restrict want,              \
                                          const float *restrict got, uint32_t dim, \
                                          float *restrict residual)                \
    {                                                                              \
        keep_lost(want, got, dim, residual);                                       \
    }

FEEDBACK_BUILD(plain, SIMD_TARGET_PLAIN)
FEEDBACK_BUILD(avx2, SIMD_TARGET_AVX2)
FEEDBACK_BUILD(avx512, SIMD_TARGET_AVX512)

static const struct {
    void (*add)(const float *restrict, const float *restrict, uint32_t, float *restrict);
    void (*keep_lost)(const float *restrict, const float *restrict, uint32_t, float *restrict);
} feedback[SIMD_END] = {
    [SIMD_PLAIN] = { add_plain, keep_lost_plain },
    [SIMD_AVX2] = { add_avx2, keep_lost_avx2 },
    [SIMD_AVX512] = { add_avx512, keep_lost_avx512 },
};

void codec_encode_feedback(const struct codec *codec, const float *grad, float *residual,
                           uint32_t dim, uint32_t k, float *scratch, uint8_t *dst)
{
    const enum simd build = simd_best();
    float *want = scratch, *got = scratch + dim;
    int status;

    feedback[build].add(grad, residual, dim, want);
    codec->encode(want, dim, k, dst);
    status = codec->decode(dst, dim, k, got);
    assert(status == 0);
    (void)status;
    feedback[build].keep_lost(want, got, dim, residual);
}
