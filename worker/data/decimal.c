#include "worker/data/decimal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DECIMAL_LEN_MAX 63u
#define EXACT_DIGITS 15u /* any integer of so many digits is a double */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t count_digits(const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && is_digit(text[n]))
        n++;
    return n;
}

/* The grammar of decimal.h: strtod() takes more than that. */
static bool is_number(const char *text, size_t len)
{
    size_t at = len && (text[0] == '-' || text[0] == '+'),
           n = count_digits(text + at, len - at);

    at += n;
    if (at < len && text[at] == '.') {
        size_t n_behind = count_digits(text + at + 1, len - at - 1);

        n += n_behind;
        at += 1 + n_behind;
    }
    if (n == 0)
        return false;
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        at += at < len && (text[at] == '-' || text[at] == '+');
        n = count_digits(text + at, len - at);
        if (n == 0)
            return false;
        at += n;
    }
    return at == len;
}

static bool parse_any(const char *text, size_t len, double *ret)
{
    char room[DECIMAL_LEN_MAX + 1];
    double x;

    if (len > DECIMAL_LEN_MAX || !is_number(text, len))
        return false;
    memcpy(room, text, len);
    room[len] = '\0';
    /* The point is a point: our programs never leave the C locale. */
    x = strtod(room, NULL);
    if (!isfinite(x))
        return false;
    *ret = x;
    return true;
}

bool decimal_parse(const char *text, size_t len, double *ret)
{
    size_t sign = len && text[0] == '-';
    uint64_t sum = 0;

    if (len == sign || len - sign > EXACT_DIGITS)
        return parse_any(text, len, ret);
    for (size_t i = sign; i < len; i++) {
        if (!is_digit(text[i]))
            return parse_any(text, len, ret);
        sum = sum * 10 + (uint64_t)(text[i] - '0');
    }
    *ret = sign ? -(double)sum : (double)sum;
    return true;
}
