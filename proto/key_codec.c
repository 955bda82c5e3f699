#include "proto/key_codec.h"

#include <assert.h>
#include <string.h>

#include "common/status.h"

#define TOP_BITS UINT64_C(0x8080808080808080) /* the last byte of a number has none */

/* The definition of put(). */
static uint8_t *put_slowly(uint8_t *dst, uint64_t value)
{
    while (value >= 0x80) {
        *dst++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *dst++ = (uint8_t)value;
    return dst;
}

/* 7 bits to each byte, from the lowest on. */
static uint64_t spread(uint64_t x)
{
    x = (x & UINT64_C(0x0fffffff)) | (x & UINT64_C(0x00fffffff0000000)) << 4;
    x = (x & UINT64_C(0x00003fff00003fff)) | (x & UINT64_C(0x0fffc0000fffc000)) << 2;
    return (x & UINT64_C(0x007f007f007f007f)) | (x & UINT64_C(0x3f803f803f803f80)) << 1;
}

/* Without a branch for each byte. At dst there is space for KEY_CODEC_BYTES_MAX. */
static uint8_t *put(uint8_t *dst, uint64_t value)
{
    unsigned n_more;
    uint64_t word;

    if (value >= UINT64_C(1) << 56)
        return put_slowly(dst, value);
    n_more = (63u - (unsigned)__builtin_clzll(value | 1)) / 7; /* bytes before the last */
    word = spread(value) | (TOP_BITS & ((UINT64_C(1) << 8 * n_more) - 1));
    memcpy(dst, &word, sizeof word);
    return dst + n_more + 1;
}

/* One number out of [src, end); NULL if it is cut, too long, or does not end in its shortest
 * form. */
static const uint8_t *get(const uint8_t *src, const uint8_t *end, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (unsigned shift = 0; src < end && shift < 64; shift += 7) {
        uint64_t byte = *src++;

        if (shift == 63 && byte > 1)
            return NULL;
        value |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            if (byte == 0 && shift)
                return NULL;
            *ret_value = value;
            return src;
        }
    }
    return NULL;
}

size_t key_codec_encode(const uint64_t *keys, uint32_t n_keys, uint8_t *dst)
{
    uint8_t *at = dst;
    uint64_t last = 0;

    for (uint32_t i = 0; i < n_keys; i++) {
        assert(i == 0 || keys[i] > last);
        at = put(at, keys[i] - last);
        last = keys[i];
    }
    return (size_t)(at - dst);
}

int key_codec_reader_init(struct key_codec_reader *r, const uint8_t *src, size_t n_bytes,
                          uint32_t n_keys)
{
    if (n_keys > n_bytes || n_bytes > (uint64_t)n_keys * KEY_CODEC_BYTES_MAX)
        return PS_ECOUNT;
    *r = (struct key_codec_reader){ .at = src,
                                    .end = n_bytes ? src + n_bytes : src,
                                    .n_left = n_keys };
    return 0;
}

/* One key after r->last: the definition of all that is below. */
static int next_key(struct key_codec_reader *r, uint64_t *ret_key)
{
    uint64_t step;
    const uint8_t *at = get(r->at, r->end, &step);

    if (!at)
        return PS_ECOUNT;
    if (step > UINT64_MAX - r->last || (step == 0 && r->any))
        return PS_EORDER;
    r->any = true;
    r->at = at;
    r->last += step;
    *ret_key = r->last;
    return 0;
}

#define LOW_BITS UINT64_C(0x0101010101010101)

/* The 7 bits of each byte, the lowest byte's lowest. */
static uint64_t squeeze(uint64_t x)
{
    x &= ~TOP_BITS;
    x = (x & UINT64_C(0x007f007f007f007f)) | (x & UINT64_C(0x7f007f007f007f00)) >> 1;
    x = (x & UINT64_C(0x00003fff00003fff)) | (x & UINT64_C(0x3fff00003fff0000)) >> 2;
    return (x & UINT64_C(0x0fffffff)) | (x & UINT64_C(0x0fffffff00000000)) >> 4;
}

/* Eight numbers of one byte each. None is 0, and the sum cannot wrap: the caller has looked. */
static uint64_t add_bytes(uint64_t word, uint64_t key, uint64_t *ret_keys)
{
    for (unsigned i = 0; i < 8; i++) {
        key += word & 0x7f;
        word >>= 8;
        ret_keys[i] = key;
    }
    return key;
}

#define TWO_TOPS UINT64_C(0x0080008000800080) /* top bits of four numbers of two bytes */
#define TWO_ENDS UINT64_C(0x7f007f007f007f00) /* and the other bits of their last bytes */

/* Four numbers of two bytes each, none of them ending in 0. */
static bool is_four_pairs(uint64_t word)
{
    return (word & TOP_BITS) == TWO_TOPS &&
           (((word & TWO_ENDS) + TWO_ENDS) & TOP_BITS) == (TOP_BITS & ~TWO_TOPS);
}

static uint64_t add_pairs(uint64_t word, uint64_t key, uint64_t *ret_keys)
{
    word = (word & UINT64_C(0x007f007f007f007f)) | (word & TWO_ENDS) >> 1;
    for (unsigned i = 0; i < 4; i++) {
        key += word & 0x3fff;
        word >>= 16;
        ret_keys[i] = key;
    }
    return key;
}

/*
 * As many of the next n keys as are simple: numbers of at most 8 bytes, more than 8 bytes
 * before the end, far from 2^64. Returns how many; what it stops at is next_key()'s to judge.
 * A word of 8 bytes gives eight keys, or four, or the first two numbers that end in it, or one:
 * the ends come from one load, so that a key waits for little of the one before it.
 */
static uint32_t next_simple(struct key_codec_reader *r, uint32_t n, uint64_t *ret_keys)
{
    const uint8_t *at = r->at;
    uint64_t key = r->last;
    uint32_t i = 0;

    while (i < n && r->end - at >= 8 && key < UINT64_C(1) << 62) {
        uint64_t word, ends, end, step;

        memcpy(&word, at, sizeof word);
        ends = ~word & TOP_BITS;
        if (ends == TOP_BITS && n - i >= 8 && ((word - LOW_BITS) & TOP_BITS) == 0) {
            key = add_bytes(word, key, ret_keys + i);
            at += 8;
            i += 8;
            continue;
        }
        if (is_four_pairs(word) && n - i >= 4) {
            key = add_pairs(word, key, ret_keys + i);
            at += 8;
            i += 4;
            continue;
        }
        end = ends & -ends;
        if (!end || !(word & (end - (end >> 7))))
            break; /* long, or its last byte is 0 */
        step = word & (end | (end - 1));
        ret_keys[i++] = key += squeeze(step);
        ends &= ends - 1;
        if (ends && i < n) {
            uint64_t second = ends & -ends;

            if (!(word & (second - (second >> 7))))
                ends = 0;
            else
                ret_keys[i++] = key +=
                    squeeze((word & (second | (second - 1))) >> (__builtin_ctzll(end) + 1));
            end = ends ? second : end;
        }
        at += (unsigned)__builtin_ctzll(end) / 8 + 1;
    }
    r->any = r->any || i;
    r->at = at;
    r->last = key;
    return i;
}

int key_codec_reader_next(struct key_codec_reader *r, uint32_t n, uint64_t *ret_keys)
{
    int status;

    assert(n <= r->n_left);
    r->n_left -= n;
    for (uint32_t i = 0; i < n; i++) {
        i += next_simple(r, n - i, ret_keys + i);
        if (i == n)
            break;
        status = next_key(r, &ret_keys[i]);
        if (status)
            return status;
    }
    return r->n_left || r->at == r->end ? 0 : PS_ECOUNT;
}

int key_codec_decode(const uint8_t *src, size_t n_bytes, uint32_t n_keys, uint64_t *ret_keys)
{
    struct key_codec_reader r;
    int status = key_codec_reader_init(&r, src, n_bytes, n_keys);

    return status ? status : key_codec_reader_next(&r, n_keys, ret_keys);
}
