#include "proto/codec_catalog.h"

#include <assert.h>
#include <string.h>

static const struct codec *const codecs[CODEC_ID_END] = {
    [CODEC_FP32] = &codec_fp32, [CODEC_BF16] = &codec_bf16,     [CODEC_FP16] = &codec_fp16,
    [CODEC_INT8] = &codec_int8, [CODEC_ONEBIT] = &codec_onebit, [CODEC_TOPK] = &codec_topk,
};

const struct codec *codec_by_id(uint32_t id)
{
    return id < CODEC_ID_END ? codecs[id] : NULL;
}

const struct codec *codec_find(const char *name)
{
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        if (strcmp(codecs[id]->name, name) == 0)
            return codecs[id];
    return NULL;
}

void codec_encode_feedback(const struct codec *codec, const float *grad, float *residual,
                           uint32_t dim, uint32_t k, float *scratch, uint8_t *dst)
{
    float *want = scratch, *got = scratch + dim;
    int status;

    for (size_t i = 0; i < dim; i++)
        want[i] = grad[i] + residual[i];
    codec->encode(want, dim, k, dst);
    status = codec->decode(dst, dim, k, got);
    assert(status == 0);
    (void)status;
    for (size_t i = 0; i < dim; i++) {
        float lost = want[i] - got[i];

        residual[i] = lost - lost == 0 ? lost : 0;
    }
}
