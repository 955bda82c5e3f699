/*
 * What a value codec is: how one row of floats travels. codec_*.c are the codecs,
 * codec_catalog.c, above them, finds one.
 *
 * Each row stands alone and has a fixed size, so that what arrives does not depend on how
 * rows were dealt out to shards. codec_X below is plain C and the definition; codec_catalog.h
 * finds the build for this processor, which gives the same bits (codec_builds.h). No
 * -ffast-math: subnormals and NaN matter.
 *
 *     id name     bytes of a row of dim floats           what is lost
 *     0  fp32     4 dim                                  nothing
 *     1  bf16     2 dim                                  rounded to nearest, ties to even
 *     2  fp16     2 dim                                  the same; overflow to infinity
 *     3  int8     4 + dim                                rounded to steps of max|x| / 127
 *     4  onebit   4 ceil(dim / 256) + ceil(dim / 8)      all but signs and means
 *     5  topk     6 k                                    all but the k largest by |x|
 *
 *     int8     scale f32 = max|x| / 127 (a NaN is 7fc00000), then q[dim] = clamp(rint(x / scale))
 *     onebit   scale f32 = mean|x| of each block of 256 (the last may be shorter; added up in
 *              double, in 16 lanes that are then folded in halves; any NaN is 7fc00000), then the
 *              signs of the whole row, LSB first, 1 = x >= 0
 *     topk     index u16[k] ascending, then value f32[k]; of equal |x| the lower index is
 *              kept, and all others become 0
 *
 * onebit: Seide et al., Interspeech 2014 (here with one scale); topk: Aji and Heafield, EMNLP
 * 2017. int8's rounding: golden vectors codec_int8 (divide, never multiply by 1/scale).
 */
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include <stdbool.h>

#include "common/base.h"
#include "proto/codec_id.h"

struct codec {
    const char *name;
    enum codec_id id;
    bool feedback; /* what is lost is kept by the sender and added to the row's next push */

    /* k is the number of values that topk keeps, 1..dim; the other codecs ignore it. */
    size_t (*row_bytes)(uint32_t dim, uint32_t k);

    /* src: dim floats; dst: row_bytes(dim, k). Finite input gives finite output, except that
     * fp16 and bf16 overflow to infinity. NaN and infinity give bytes whose row decodes to some
     * NaN or infinity. */
    void (*encode)(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst);

    /* PS_ECODEC when the bytes cannot have come from encode() (topk: indices not ascending or
     * not below dim; int8: a q of -128; onebit: bits beyond the row); else dim floats. Whether
     * those are finite is check()'s to say. */
    int (*decode)(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst);

    /* What decode() would say of these bytes, or else PS_ENAN when a float of the row would be
     * NaN or infinite; without decoding them. */
    int (*check)(const uint8_t *restrict src, uint32_t dim, uint32_t k);
};

extern const struct codec codec_fp32, codec_bf16, codec_fp16, codec_int8, codec_onebit,
    codec_topk;

#endif
