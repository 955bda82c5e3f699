/* index u16[k] ascending, value f32[k]; the rest of the row is 0. */
#include <assert.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_bytes.h"

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)dim;
    return 6 * (size_t)k;
}

static uint32_t n_at_least(const float *src, uint32_t dim, uint32_t magnitude)
{
    uint32_t n = 0;

    for (size_t i = 0; i < dim; i++)
        n += codec_bytes_magnitude(src, i) >= magnitude;
    return n;
}

/* The k-th largest magnitude, found bit by bit from the top: the largest number that at least k
 * of the magnitudes reach. 31 passes that vectorise, no memory, and no input that is slow. */
static uint32_t threshold(const float *src, uint32_t dim, uint32_t k)
{
    uint32_t found = 0;

    for (uint32_t bit = 1u << 30; bit; bit >>= 1)
        if (n_at_least(src, dim, found | bit) >= k)
            found |= bit;
    return found;
}

static void encode(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst)
{
    uint8_t *values = dst + 2 * (size_t)k;
    uint32_t least, n_ties, n = 0;

    assert(k >= 1 && k <= dim && dim <= 65536);
    least = threshold(src, dim, k);
    n_ties = k - n_at_least(src, dim, least + 1);
    for (uint32_t i = 0; i < dim; i++) {
        uint32_t magnitude = codec_bytes_magnitude(src, i);

        if (magnitude < least || (magnitude == least && n_ties == 0))
            continue;
        n_ties -= magnitude == least;
        codec_bytes_put_u16(dst, n, (uint16_t)i);
        codec_bytes_put_f32(values, n, src[i]);
        n++;
    }
    assert(n == k);
}

static int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst)
{
    const uint8_t *values = src + 2 * (size_t)k;
    uint32_t next = 0; /* the least index that may come */

    memset(dst, 0, 4 * (size_t)dim);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t at = codec_bytes_get_u16(src, i);

        if (at < next || at >= dim)
            return PS_ECODEC;
        dst[at] = codec_bytes_get_f32(values, i);
        next = at + 1;
    }
    return 0;
}

const struct codec codec_topk = { "topk", CODEC_TOPK, true, row_bytes, encode, decode };
