#include "server/core/delta_sparse.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/status.h"

#define HEAD_BYTES 4u
#define LEVELS 8u
#define SHARE 8u /* of the floats one in so many is sent, at most */

/* ---- bits, from the lowest of each byte on ---- */

struct bit_writer {
    uint8_t *at, *end;
    uint64_t held; /* the lower n of them */
    uint32_t n;
    bool is_over; /* beyond the end */
};

struct bit_reader {
    const uint8_t *at, *end;
    uint64_t held;
    uint32_t n;
    bool is_over;
};

static void put_bits(struct bit_writer *b, uint32_t value, uint32_t n)
{
    b->held |= (uint64_t)value << b->n;
    b->n += n;
    for (; b->n >= 8; b->n -= 8, b->held >>= 8) {
        if (b->at < b->end)
            *b->at++ = (uint8_t)b->held;
        else
            b->is_over = true;
    }
}

static uint32_t get_bits(struct bit_reader *b, uint32_t n)
{
    uint32_t value;

    for (; b->n < n; b->n += 8) {
        if (b->at == b->end)
            b->is_over = true;
        else
            b->held |= (uint64_t)*b->at++ << b->n;
    }
    value = (uint32_t)(b->held & ((UINT64_C(1) << n) - 1));
    b->held >>= n;
    b->n -= n;
    return value;
}

/* ---- numbers ---- */

static uint32_t rice_bits(uint32_t n, uint32_t dim)
{
    uint32_t k = 0;

    while ((uint64_t)n << (k + 1) <= dim)
        k++;
    return k;
}

static float scale_of(uint16_t upper)
{
    const uint32_t bits = (uint32_t)upper << 16;
    float scale;

    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* The nearest below or at x. */
static uint16_t upper_half(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float value_of(float scale, uint32_t level)
{
    return ldexpf(scale, -(int)level);
}

/* ---- which floats ---- */

/* Of |x|: twice its level, one more in the lower half of the level's range; 2 * LEVELS if it is too small to be sent. A
 * float between two values is nearer to the upper one from 3/4 of it on. */
static uint32_t half_level(float x, float scale)
{
    const float share = x / (0.75f * scale); /* of level i: from 2^-i to twice that */
    uint32_t bits, level;

    if (!(share >= 1.0f / (1u << (LEVELS - 1))))
        return 2 * LEVELS;
    memcpy(&bits, &share, sizeof bits);
    level = bits >> 23 < 127 ? 127 - (bits >> 23) : 0;
    return 2 * level + ((bits & 0x7fffff) < 0x34fdf4 && share < 1.5f);
}

struct choice {
    float scale;
    uint32_t n_levels; /* half levels that are sent */
    uint32_t n_last;   /* of the last of them so many floats, the first ones */
    uint32_t n;
};

/* What a float of half level i loses when it is sent, is what it differs from its value by. */
static double lost_by(float x, float scale, uint32_t i)
{
    const double lost = (double)x - (double)value_of(scale, i / 2);

    return lost * lost;
}

/* The head has 16 bits for it. */
static uint32_t n_sent_max(uint32_t dim)
{
    const uint32_t n = dim / SHARE ? dim / SHARE : 1;

    return n < UINT16_MAX ? n : UINT16_MAX;
}

/* False: there is nothing to send. */
static bool choose(const float *x, uint32_t dim, double allowed, float max, struct choice *c)
{
    uint32_t counts[2 * LEVELS + 1] = { 0 }, n_max = n_sent_max(dim), i;
    double energies[2 * LEVELS + 1] = { 0 }, losses[2 * LEVELS + 1] = { 0 }, left = 0;

    c->scale = scale_of(upper_half(max));
    if (!(value_of(c->scale, LEVELS) > 0))
        return false;
    for (uint32_t k = 0; k < dim; k++) {
        const float a = fabsf(x[k]);

        i = half_level(a, c->scale);
        counts[i]++;
        energies[i] += (double)a * (double)a;
        losses[i] += i < 2 * LEVELS ? lost_by(a, c->scale, i) : 0;
    }
    for (i = 0; i <= 2 * LEVELS; i++)
        left += energies[i];
    c->n = c->n_levels = 0;
    for (i = 0; i < 2 * LEVELS && left > allowed && c->n < n_max; i++) {
        c->n_last = counts[i] < n_max - c->n ? counts[i] : n_max - c->n;
        c->n += c->n_last;
        c->n_levels = i + 1;
        left += losses[i] - energies[i];
    }
    return c->n > 0;
}

size_t delta_sparse_encode(const float *x, uint32_t dim, double allowed, uint8_t *dst,
                           size_t max_bytes, float *sent)
{
    struct bit_writer b = { .at = dst + HEAD_BYTES, .end = dst + max_bytes };
    uint32_t k, last = UINT32_MAX, n_of_last = 0;
    struct choice c;
    float max = 0;
    uint16_t head[2];

    for (uint32_t i = 0; i < dim; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    if (max_bytes <= HEAD_BYTES || !choose(x, dim, allowed, max, &c))
        return 0;
    k = rice_bits(c.n, dim);
    memset(sent, 0, dim * sizeof *sent);
    for (uint32_t i = 0; i < dim && !b.is_over; i++) {
        const uint32_t half = half_level(fabsf(x[i]), c.scale), gap = i - last - 1;
        const float value = value_of(c.scale, half / 2);

        if (half >= c.n_levels || (half + 1 == c.n_levels && n_of_last == c.n_last))
            continue;
        n_of_last += half + 1 == c.n_levels;
        for (uint32_t q = gap >> k; q; q--)
            put_bits(&b, 1, 1);
        put_bits(&b, (gap & ((1u << k) - 1)) << 1, k + 1);
        put_bits(&b, (uint32_t)(x[i] < 0) | half / 2 << 1, 4);
        sent[i] = x[i] < 0 ? -value : value;
        last = i;
    }
    if (b.n)
        put_bits(&b, 0, 8 - b.n);
    head[0] = (uint16_t)c.n;
    head[1] = upper_half(c.scale);
    memcpy(dst, head, sizeof head);
    return b.is_over ? 0 : (size_t)(b.at - dst);
}

int delta_sparse_decode(const uint8_t *src, size_t n_bytes, uint32_t dim, float *dst,
                        size_t *ret_bytes)
{
    struct bit_reader b = { .at = src + HEAD_BYTES, .end = src + n_bytes };
    uint32_t k, place = UINT32_MAX;
    uint16_t head[2];
    float scale;

    if (n_bytes < HEAD_BYTES)
        return PS_ECOUNT;
    memcpy(head, src, sizeof head);
    scale = scale_of(head[1]);
    if (head[0] < 1 || head[0] > dim || !(value_of(scale, LEVELS) > 0) || !isfinite(scale))
        return PS_ECODEC;
    k = rice_bits(head[0], dim);
    memset(dst, 0, dim * sizeof *dst);
    for (uint32_t i = 0; i < head[0]; i++) {
        uint64_t gap = 0;
        uint32_t code;

        while (get_bits(&b, 1) && gap < dim)
            gap += UINT64_C(1) << k;
        gap += get_bits(&b, k);
        code = get_bits(&b, 4);
        if (b.is_over)
            return PS_ECOUNT;
        if (gap >= dim - (place + 1))
            return PS_ECODEC;
        place += (uint32_t)gap + 1;
        dst[place] = value_of(code & 1 ? -scale : scale, code >> 1);
    }
    if (b.held)
        return PS_ECODEC;
    *ret_bytes = (size_t)(b.at - src);
    return 0;
}
