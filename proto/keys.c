#include "proto/keys.h"

#include <assert.h>

#include "common/status.h"

static uint8_t *put(uint8_t *dst, uint64_t value)
{
    while (value >= 0x80) {
        *dst++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *dst++ = (uint8_t)value;
    return dst;
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

size_t keys_encode(const uint64_t *keys, uint32_t n_keys, uint8_t *dst)
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

int keys_decode(const uint8_t *src, size_t n_bytes, uint32_t n_keys, uint64_t *ret_keys)
{
    const uint8_t *end = src + n_bytes;
    uint64_t key = 0, step;

    if (n_keys > n_bytes || n_bytes > (uint64_t)n_keys * KEYS_BYTES_MAX)
        return PS_ECOUNT;
    for (uint32_t i = 0; i < n_keys; i++) {
        /* Most differences of a batch's keys fit one byte. */
        if (src < end && *src < 0x80)
            step = *src++;
        else
            src = get(src, end, &step);
        if (!src)
            return PS_ECOUNT;
        if (step > UINT64_MAX - key || (step == 0 && i))
            return PS_EORDER;
        key += step;
        ret_keys[i] = key;
    }
    return src == end ? 0 : PS_ECOUNT;
}
