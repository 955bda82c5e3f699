/*
 * Keys on the wire: sorted, unique, as differences.
 *
 *     LEB128(key[0]), LEB128(key[1] - key[0]), ...      1 to 10 bytes each
 *
 * A difference of 0 after the first key, a sum past 2^64 - 1, a LEB128 longer than
 * it need be or than 64 bits: all refused.
 */
#ifndef PROTO_KEY_CODEC_H
#define PROTO_KEY_CODEC_H

#include <stdbool.h>

#include "common/base.h"

#define KEY_CODEC_BYTES_MAX 10 /* of one key */

/* Writes n_keys ascending keys to dst, which has space for n_keys * KEY_CODEC_BYTES_MAX; returns the
 * bytes written. */
size_t key_codec_encode(const uint64_t *keys, uint32_t n_keys, uint8_t *dst);

/* Reads exactly n_keys keys out of exactly n_bytes bytes. PS_EORDER (not ascending) or
 * PS_ECOUNT (bytes too few or too many, or a malformed number). */
int key_codec_decode(const uint8_t *src, size_t n_bytes, uint32_t n_keys, uint64_t *ret_keys)
    MUST_CHECK;

/* The same in pieces: how far a run of keys has been read. */
struct key_codec_reader {
    const uint8_t *at, *end; /* borrowed */
    uint64_t last;           /* the key before */
    uint32_t n_left;
    bool any; /* has been read */
};

/* PS_ECOUNT: so many keys cannot stand in so many bytes. */
int key_codec_reader_init(struct key_codec_reader *r, const uint8_t *src, size_t n_bytes,
                          uint32_t n_keys) MUST_CHECK;

/* The next n keys, n <= r->n_left. With the last of them all bytes must have been read. Errors
 * as above, after which the reader is of no use. */
int key_codec_reader_next(struct key_codec_reader *r, uint32_t n, uint64_t *ret_keys)
    MUST_CHECK;

#endif
