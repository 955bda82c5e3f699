/* Every value codec, by number and by the name that settings use; and encoding with error
 * feedback. */
#ifndef PROTO_CODEC_CATALOG_H
#define PROTO_CODEC_CATALOG_H

#include "common/simd.h"
#include "proto/codec.h"

/* Static storage, or NULL. In the build that is the fastest here. */
const struct codec *codec_by_id(uint32_t id);
const struct codec *codec_find(const char *name);

/* One of a codec's builds, all of which give the same bytes and floats, for those who compare
 * them; simd_runs(build). */
const struct codec *codec_build(enum codec_id id, enum simd build);

/*
 * Encodes grad + residual and leaves in residual what the codec lost:
 *     c = grad + residual;  dst = encode(c);  residual = c - decode(dst)
 * A residual that is not finite becomes 0: a gradient of NaN is refused by the server once, not
 * for ever. grad, residual: dim floats; `scratch`: 2 * dim floats. golden/codec_onebit,
 * codec_topk.
 */
void codec_encode_feedback(const struct codec *codec, const float *grad, float *residual,
                           uint32_t dim, uint32_t k, float *scratch, uint8_t *dst);

#endif
