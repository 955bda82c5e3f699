/*
 * Compressing a body where it pays, and undoing it within bounds that no peer can move.
 */
#ifndef PROTO_MESSAGE_ZSTD_H
#define PROTO_MESSAGE_ZSTD_H

#include <stdbool.h>

#include "common/bytes.h"

#define MESSAGE_ZSTD_LEVEL 1
#define MESSAGE_ZSTD_BYTES_MIN 512u /* a shorter body cannot repay its frame and the call */

/* One thread's contexts for compressing and decompressing, made at their first use and kept: a context is a megabyte,
 * which takes longer to allocate than most bodies take to compress. A zeroed struct is valid. */
struct message_zstd {
    struct ZSTD_CCtx_s *compress;   /* owned; NULL until needed */
    struct ZSTD_DCtx_s *decompress; /* owned; NULL until needed */
    struct ZSTD_DCtx_s *slices; /* owned; NULL until needed: of the body that comes in slices */
    struct bytes packed;        /* scratch */
};

void message_zstd_deinit(struct message_zstd *z);

/* Replaces the n_bytes at `body` by one zstd frame and returns its length; or returns
 * n_bytes, nothing changed, when that is not at least 1/16 shorter (or there is no
 * memory to find out). */
size_t message_zstd_compress(struct message_zstd *z, uint8_t *body, size_t n_bytes);

/* The decompressed length that a zstd frame states. The frame is not looked at beyond that. Errors as below. */
int message_zstd_size(const uint8_t *src, size_t n_bytes, uint32_t max_bytes, size_t *ret_bytes)
    MUST_CHECK;

/* Fills *scratch, whatever was in it, with what one zstd frame of exactly n_bytes holds.
 * PS_ECORRUPT if it is no such frame or does not say how much it holds; PS_ETOOBIG if that is
 * more than max_bytes; -ENOMEM. */
int message_zstd_decompress(struct message_zstd *z, const uint8_t *src, size_t n_bytes,
                            uint32_t max_bytes, struct bytes *scratch) MUST_CHECK;

/* One zstd frame that is decompressed a slice at a time, while the context decompresses others as a whole. */
struct message_zstd_slices {
    const uint8_t *src; /* borrowed, until the end */
    size_t n_bytes, n_read, next_bytes;
    uint8_t *dst; /* borrowed, until the end */
    size_t dst_bytes, n_done;
};

/* Begins with one whose length message_zstd_size() has found to be dst_bytes. Of one context one such frame is under
 * way: the one before it is over, or is given up. -ENOMEM. */
int message_zstd_begin(struct message_zstd *z, const uint8_t *src, size_t n_bytes, uint8_t *dst,
                       size_t dst_bytes, struct message_zstd_slices *ret) MUST_CHECK;

/* Decompresses about slice_bytes more, or less where that takes many bytes of the frame; *ret_done: that was all. A
 * block of zstd, of at most 128 KiB, is decompressed as a whole. PS_ECORRUPT, also where the frame ends too early or
 * too late. */
int message_zstd_more(struct message_zstd *z, struct message_zstd_slices *s, size_t slice_bytes,
                      bool *ret_done) MUST_CHECK;

#endif
