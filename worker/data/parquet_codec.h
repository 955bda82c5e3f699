/*
 * The packings of Parquet's pages: none, snappy, gzip, zstd. A page is unpacked whole, into a buffer of the size that
 * its header gives.
 *
 * Snappy's format is short, and its library would bring C++'s runtime with it:
 * https://github.com/google/snappy/blob/main/format_description.txt
 */
#ifndef WORKER_DATA_PARQUET_CODEC_H
#define WORKER_DATA_PARQUET_CODEC_H

#include <stdbool.h>

#include "common/base.h"

enum parquet_codec {
    PARQUET_CODEC_NONE = 0,
    PARQUET_CODEC_SNAPPY = 1,
    PARQUET_CODEC_GZIP = 2,
    PARQUET_CODEC_ZSTD = 6
};

/* "" for one that can be unpacked, else its name. */
const char *parquet_codec_refused(int64_t codec);

/* No n_packed bytes hold more than so many. */
uint64_t parquet_codec_unpacked_max(enum parquet_codec codec, size_t n_packed);

/* True if the bytes are those of exactly n_bytes, which are then at dst; else dst may hold anything. */
bool parquet_codec_unpack(enum parquet_codec codec, const uint8_t *packed, size_t n_packed,
                          uint8_t *dst, size_t n_bytes) MUST_CHECK;

/* Parts of it, for tests. */
bool parquet_codec_unsnappy(const uint8_t *packed, size_t n_packed, uint8_t *dst,
                            size_t n_bytes) MUST_CHECK;

#endif
