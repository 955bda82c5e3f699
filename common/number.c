#include "common/number.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

/* From small to great, each a multiple of the one before. */
static const struct unit byte_units[] = {
    { "", 1 },
    { "K", UINT64_C(1) << 10 },
    { "M", UINT64_C(1) << 20 },
    { "G", UINT64_C(1) << 30 },
    { "T", UINT64_C(1) << 40 },
};

static const struct unit ms_units[] = {
    { "ms", 1 },
    { "s", 1000 },
    { "m", 60 * 1000 },
    { "h", 3600 * 1000 },
};

/* The digits at the front of *text, which then stands behind them. */
static int read_digits(const char **text, uint64_t *ret)
{
    const char *at = *text;
    uint64_t n = 0;

    if (*at < '0' || *at > '9')
        return -EINVAL;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(n, (uint64_t)10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*at - '0'), &n))
            return -EINVAL;
    *text = at;
    *ret = n;
    return 0;
}

static int read_with_unit(const char *text, const struct unit *units, size_t n_units,
                          uint64_t *ret)
{
    uint64_t n, product;
    size_t i;

    if (read_digits(&text, &n) < 0)
        return -EINVAL;
    for (i = 0; i < n_units; i++)
        if (strcasecmp(text, units[i].name) == 0) {
            if (__builtin_mul_overflow(n, units[i].factor, &product))
                return -EINVAL;
            *ret = product;
            return 0;
        }
    return -EINVAL;
}

static void write_with_unit(uint64_t n, const struct unit *units, size_t n_units,
                            char dst[NUMBER_TEXT_MAX])
{
    size_t i = n_units - 1;

    while (i > 0 && (n == 0 || n % units[i].factor != 0))
        i--;
    snprintf(dst, NUMBER_TEXT_MAX, "%" PRIu64 "%s", n / units[i].factor, units[i].name);
}

int number_read_u64(const char *text, uint64_t *ret)
{
    uint64_t n;

    if (read_digits(&text, &n) < 0 || *text)
        return -EINVAL;
    *ret = n;
    return 0;
}

int number_read_bytes(const char *text, uint64_t *ret)
{
    return read_with_unit(text, byte_units, COUNT_OF(byte_units), ret);
}

int number_read_ms(const char *text, uint64_t *ret)
{
    if (strcmp(text, "0") == 0) {
        *ret = 0;
        return 0;
    }
    return read_with_unit(text, ms_units, COUNT_OF(ms_units), ret);
}

int number_read_float(const char *text, float *ret)
{
    char *end;
    float x;

    /* strtof() also takes blanks in front, hexadecimal, nan and infinity. */
    if (!*text || text[strspn(text, "0123456789+-.eE")] != '\0')
        return -EINVAL;
    errno = 0;
    x = strtof(text, &end);
    if (*end || end == text || !isfinite(x) || (x == 0 && errno == ERANGE))
        return -EINVAL;
    *ret = x;
    return 0;
}

void number_write_bytes(uint64_t n_bytes, char dst[NUMBER_TEXT_MAX])
{
    write_with_unit(n_bytes, byte_units, COUNT_OF(byte_units), dst);
}

void number_write_ms(uint64_t ms, char dst[NUMBER_TEXT_MAX])
{
    write_with_unit(ms, ms_units, COUNT_OF(ms_units), dst);
}

void number_write_float(float x, char dst[NUMBER_TEXT_MAX])
{
    int digits = 6; /* with fewer, 100 would be 1e+02 */

    do
        snprintf(dst, NUMBER_TEXT_MAX, "%.*g", digits, (double)x);
    while (++digits <= 9 && strtof(dst, NULL) != x);
}
