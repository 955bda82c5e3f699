/* The codecs by number, as the wire has them (codec.h); C and C++ both read this. */
#ifndef PROTO_CODEC_ID_H
#define PROTO_CODEC_ID_H

enum codec_id {
    CODEC_FP32,
    CODEC_BF16,
    CODEC_FP16,
    CODEC_INT8,
    CODEC_ONEBIT,
    CODEC_TOPK,
    CODEC_ID_END
};

#endif
