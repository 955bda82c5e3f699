#include "worker/data/parquet_token.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct line_parser_span format_integer(uint64_t x, bool minus,
                                              char space[PARQUET_TOKEN_BYTES])
{
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
        "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
        "8081828384858687888990919293949596979899";
    size_t n = PARQUET_TOKEN_BYTES;

    for (; x >= 100; x /= 100)
        memcpy(space + (n -= 2), pairs + x % 100 * 2, 2);
    if (x >= 10)
        memcpy(space + (n -= 2), pairs + x * 2, 2);
    else
        space[--n] = (char)('0' + x);
    if (minus)
        space[--n] = '-';
    return (struct line_parser_span){ space + n, PARQUET_TOKEN_BYTES - n };
}

/* The digits of the shortest decimal number that is x again, and its exponent: d.ddd * 10^exponent. */
static size_t shortest_digits(double x, bool is_float, char digits[24], int *ret_exponent)
{
    /* With so few digits less, any number that has a short text has it already; but not the very small ones, which
     * are few and far between. */
    const bool is_small = x < (is_float ? (double)FLT_MIN : DBL_MIN);
    char text[40];
    size_t n = 0;

    for (int precision = is_small   ? 0
                         : is_float ? 5
                                    : 14;
         precision <= (is_float ? 8 : 16); precision++) {
        double back;

        snprintf(text, sizeof text, "%.*e", precision, x);
        back = strtod(text, NULL);
        if (is_float ? (float)back == (float)x : back == x)
            break;
    }
    for (const char *at = text; *at != 'e'; at++)
        if (*at != '.')
            digits[n++] = *at;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    *ret_exponent = atoi(strchr(text, 'e') + 1);
    return n;
}

size_t parquet_token_real(double x, bool is_float, char to[PARQUET_TOKEN_BYTES])
{
    char digits[24], *at = to;
    int exponent;
    size_t n;

    if (!isfinite(x))
        return (size_t)sprintf(to, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
    if (signbit(x))
        *at++ = '-';
    n = shortest_digits(fabs(x), is_float, digits, &exponent);
    if (exponent < -4 || exponent >= 16)
        return (size_t)(at - to) + (size_t)sprintf(at, "%c%s%.*se%c%02d", digits[0],
                                                   n > 1 ? "." : "", (int)n - 1, digits + 1,
                                                   exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0)
        return (size_t)(at - to) +
               (size_t)sprintf(at, "0.%.*s%.*s", -exponent - 1, "000", (int)n, digits);
    for (int i = 0; i <= exponent; i++)
        *at++ = i < (int)n ? digits[i] : '0';
    *at++ = '.';
    return (size_t)(at - to) +
           (n > (size_t)exponent + 1
                ? (size_t)sprintf(at, "%.*s", (int)n - exponent - 1, digits + exponent + 1)
                : (size_t)sprintf(at, "0"));
}

/* Identifiers that a data frame has made reals of, since one of them was missing. */
static bool is_whole(double x, bool is_float)
{
    const double max = is_float ? 1 << 24 : 1e15;

    return x > -max && x < max && x == (double)(int64_t)x && !(x == 0 && signbit(x));
}

static struct line_parser_span format_real(double x, bool is_float,
                                           char space[PARQUET_TOKEN_BYTES])
{
    struct line_parser_span whole;

    if (!is_whole(x, is_float))
        return (struct line_parser_span){ space, parquet_token_real(x, is_float, space) };
    whole = format_integer(x < 0 ? (uint64_t)-x : (uint64_t)x, x < 0, space);
    memmove(space, whole.at, whole.len);
    memcpy(space + whole.len, ".0", 2);
    return (struct line_parser_span){ space, whole.len + 2 };
}

struct line_parser_span parquet_token_of(enum parquet_type type, const struct parquet_values *v,
                                         uint32_t i, char space[PARQUET_TOKEN_BYTES])
{
    switch (type) {
    case PARQUET_TEXT:
        return v->texts[i];
    case PARQUET_INT:
        if (v->integers[i] < 0)
            return format_integer(0 - (uint64_t)v->integers[i], true, space);
        return format_integer((uint64_t)v->integers[i], false, space);
    case PARQUET_UINT:
        return format_integer((uint64_t)v->integers[i], false, space);
    case PARQUET_FLOAT:
    case PARQUET_HALF:
    case PARQUET_DOUBLE:
        break;
    }
    return format_real(v->reals[i], type != PARQUET_DOUBLE, space);
}

double parquet_token_number(enum parquet_type type, const struct parquet_values *v, uint32_t i)
{
    return type == PARQUET_INT    ? (double)v->integers[i]
           : type == PARQUET_UINT ? (double)(uint64_t)v->integers[i]
                                  : v->reals[i];
}
