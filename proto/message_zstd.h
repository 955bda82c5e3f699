/*
 * Compressing a body where it pays, and undoing it within bounds that no peer can move.
 */
#ifndef PROTO_MESSAGE_ZSTD_H
#define PROTO_MESSAGE_ZSTD_H

#include "common/bytes.h"

#define MESSAGE_ZSTD_LEVEL 1
#define MESSAGE_ZSTD_BYTES_MIN 512u /* a shorter body cannot repay its frame and the call */

/* One thread's contexts for compressing and decompressing, made at their first use and kept: a context is a megabyte,
 * which takes longer to allocate than most bodies take to compress. A zeroed struct is valid. */
struct message_zstd {
    struct ZSTD_CCtx_s *compress;   /* owned; NULL until needed */
    struct ZSTD_DCtx_s *decompress; /* owned; NULL until needed */
    struct bytes packed;            /* scratch */
};

void message_zstd_deinit(struct message_zstd *z);

/* Replaces the n_bytes at `body` by one zstd frame and returns its length; or returns
 * n_bytes, nothing changed, when that is not at least 1/16 shorter (or there is no
 * memory to find out). */
size_t message_zstd_compress(struct message_zstd *z, uint8_t *body, size_t n_bytes);

/* The decompressed length of one zstd frame of exactly n_bytes, without decompressing it. Errors as below. */
int message_zstd_size(const uint8_t *src, size_t n_bytes, uint32_t max_bytes, size_t *ret_bytes)
    MUST_CHECK;

/* Fills *scratch, whatever was in it, with what one zstd frame of exactly n_bytes holds.
 * PS_ECORRUPT if it is no such frame or does not say how much it holds; PS_ETOOBIG if that is
 * more than max_bytes; -ENOMEM. */
int message_zstd_decompress(struct message_zstd *z, const uint8_t *src, size_t n_bytes,
                            uint32_t max_bytes, struct bytes *scratch) MUST_CHECK;

#endif
