#include "worker/data/line_parser.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hashing a token of a few bytes costs less than calling a library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/number.h"

/* ---- numbers ---- */

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

/* The grammar of line_parser.h: strtod() accepts more. */
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
    char buffer[DECIMAL_LEN_MAX + 1];
    double x;

    if (len > DECIMAL_LEN_MAX || !is_number(text, len))
        return false;
    memcpy(buffer, text, len);
    buffer[len] = '\0';
    /* The point is a point: our programs never leave the C locale. */
    x = strtod(buffer, NULL);
    if (!isfinite(x))
        return false;
    *ret = x;
    return true;
}

bool line_parser_decimal(const char *text, size_t len, double *ret)
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

bool line_parser_is_missing(const struct line_parser_plan *plan, struct line_parser_span token)
{
    size_t len = strlen(plan->missing);

    return token.len == 0 ||
           (len > 0 && token.len == len && memcmp(token.at, plan->missing, len) == 0);
}

float line_parser_transform(const struct line_parser_plan *plan, uint32_t i, double x)
{
    switch (plan->numeric_as) {
    case LINE_PARSER_LOG1P:
        if (!(x > 0))
            return 0;
        if (x < LINE_PARSER_LOG1P_TABLE && x == (double)(uint32_t)x)
            return plan->log1p_table[(uint32_t)x];
        return (float)log1p(x);
    case LINE_PARSER_STANDARDISE:
        return (float)((x - (double)plan->mean[i]) / (double)plan->std[i]);
    case LINE_PARSER_RAW:
        break;
    }
    return (float)x;
}

enum line_parser_number line_parser_number(const struct line_parser_plan *plan, uint32_t i,
                                           struct line_parser_span token, float *ret)
{
    double x;

    *ret = plan->numeric_missing;
    if (line_parser_is_missing(plan, token))
        return LINE_PARSER_NUMBER_OK;
    if (!line_parser_decimal(token.at, token.len, &x))
        return LINE_PARSER_NUMBER_MALFORMED;
    *ret = line_parser_transform(plan, i, x);
    return isfinite(*ret) ? LINE_PARSER_NUMBER_OK : LINE_PARSER_NUMBER_TOO_LARGE;
}

#define SHOWN_MAX 32u

/* ---- splitting ---- */

static uint32_t split_char(char delimiter, char *line, size_t len,
                           struct line_parser_span *spans, uint32_t n_max)
{
    char *begin = line, *end = line + len;
    uint32_t n = 0;

    for (char *at = line; at < end && n < n_max; at++)
        if (*at == delimiter) {
            spans[n++] = (struct line_parser_span){ begin, (size_t)(at - begin) };
            begin = at + 1;
        }
    if (n < n_max)
        spans[n++] = (struct line_parser_span){ begin, (size_t)(end - begin) };
    return n;
}

static uint32_t split_text(const char *delimiter, char *line, size_t len,
                           struct line_parser_span *spans, uint32_t n_max)
{
    size_t delimiter_len = strlen(delimiter);
    char *begin = line, *end = line + len;
    uint32_t n = 0;

    while (n < n_max) {
        char *hit = memmem(begin, (size_t)(end - begin), delimiter, delimiter_len);

        spans[n++] = (struct line_parser_span){ begin, (size_t)((hit ? hit : end) - begin) };
        if (!hit)
            break;
        begin = hit + delimiter_len;
    }
    return n;
}

/* Takes the quotes from a span that begins with one, a doubled quote inside becoming a single
 * one; returns where it ends, or NULL. */
static char *unquote(char quote, char *begin, const char *end, struct line_parser_span *span)
{
    char *to = begin, *from = begin + 1;

    for (; from < end; from++) {
        if (*from == quote) {
            if (from + 1 < end && from[1] == quote)
                from++;
            else
                break;
        }
        *to++ = *from;
    }
    *span = (struct line_parser_span){ begin, (size_t)(to - begin) };
    return from < end ? from + 1 : NULL;
}

/* RFC 4180, but for line ends inside quotes. */
static uint32_t split_quoted(char delimiter, char quote, char *line, size_t len,
                             struct line_parser_span *spans, uint32_t n_max)
{
    char *at = line, *end = line + len;
    uint32_t n = 0;

    while (n < n_max) {
        if (at < end && *at == quote) {
            at = unquote(quote, at, end, &spans[n++]);
            if (!at || (at < end && *at != delimiter))
                return 0;
        } else {
            char *hit = at < end ? memchr(at, delimiter, (size_t)(end - at)) : NULL;

            spans[n++] = (struct line_parser_span){ at, (size_t)((hit ? hit : end) - at) };
            at = hit ? hit : end;
        }
        if (at == end)
            break;
        at++;
    }
    return n;
}

uint32_t line_parser_split(const char *delimiter, char quote, char *line, size_t len,
                           struct line_parser_span *spans, uint32_t n_max)
{
    if (quote)
        return split_quoted(*delimiter, quote, line, len, spans, n_max);
    if (delimiter[1] == '\0')
        return split_char(*delimiter, line, len, spans, n_max);
    return split_text(delimiter, line, len, spans, n_max);
}

/* ---- refusing ---- */

/* A token as a sentence may show it: cut short, nothing that moves a terminal's cursor. */
static const char *shown(struct line_parser_span token, char buffer[SHOWN_MAX + 4])
{
    size_t n = token.len < SHOWN_MAX ? token.len : SHOWN_MAX;

    for (size_t i = 0; i < n; i++)
        buffer[i] = token.at[i] >= ' ' && token.at[i] <= '~' ? token.at[i] : '?';
    memcpy(buffer + n, token.len > n ? "..." : "", token.len > n ? 4 : 1);
    return buffer;
}

int line_parser_refuse(const struct line_parser_plan *plan, uint32_t column,
                       struct line_parser_span token, const char *what, struct err *why)
{
    const char *name = plan->names ? plan->names[column] : NULL;
    char buffer[SHOWN_MAX + 4];

    return err_set(why, PS_EDATA, "column %u%s%s%s: '%s' %s", column, name ? " (" : "",
                   name ? name : "", name ? ")" : "", shown(token, buffer), what);
}

static int refuse_split(const struct line_parser_plan *plan, uint32_t n, struct err *why)
{
    if (n == 0)
        return err_set(why, PS_EDATA,
                       "a quote is not closed, or text stands behind a closing one");
    if (n > plan->n_columns)
        return err_set(why, PS_EDATA, "more than the %u columns expected", plan->n_columns);
    return err_set(why, PS_EDATA, "%u column%s, %u expected", n, NUMBER_PLURAL(n),
                   plan->n_columns);
}

/* ---- converting ---- */

static bool equals(struct line_parser_span token, const char *text)
{
    size_t len = strlen(text);

    return token.len == len && memcmp(token.at, text, len) == 0;
}

int line_parser_label(const struct line_parser_plan *plan, uint32_t at,
                      struct line_parser_span token, float *ret, struct err *why)
{
    const uint16_t column = plan->label_columns[at];
    double x;

    *ret = 0;
    if (line_parser_is_missing(plan, token))
        return line_parser_refuse(plan, column, token, "is no label: it is missing", why);
    for (uint32_t i = 0; i < plan->n_positive; i++)
        if (token.len == plan->positive[i].len &&
            memcmp(token.at, plan->positive[i].at, token.len) == 0)
            *ret = 1;
    if (plan->n_positive)
        return 0;
    if (!line_parser_decimal(token.at, token.len, &x) || (x != 0 && x != 1))
        return line_parser_refuse(plan, column, token, "is no label: 0 or 1 expected", why);
    *ret = (float)x;
    return 0;
}

static int parse_labels(const struct line_parser_plan *plan,
                        const struct line_parser_span *spans, struct batch *b, struct err *why)
{
    float *labels = b->label + (size_t)b->n * b->n_labels;
    int status = 0;

    for (uint32_t i = 0; i < b->n_labels && !status; i++) {
        labels[i] = 0;
        if (plan->n_labels)
            status = line_parser_label(plan, i, spans[plan->label_columns[i]], labels + i, why);
    }
    return status;
}

int line_parser_numeric(const struct line_parser_plan *plan, uint32_t i,
                        struct line_parser_span token, float *ret, struct err *why)
{
    const uint32_t column = plan->numeric_columns[i];

    switch (line_parser_number(plan, i, token, ret)) {
    case LINE_PARSER_NUMBER_OK:
        break;
    case LINE_PARSER_NUMBER_MALFORMED:
        return line_parser_refuse(plan, column, token, "is not a number", why);
    case LINE_PARSER_NUMBER_TOO_LARGE:
        return line_parser_refuse(plan, column, token, "is too large a number", why);
    }
    return 0;
}

static int parse_numeric(const struct line_parser_plan *plan,
                         const struct line_parser_span *spans, float *numeric, struct err *why)
{
    int status = 0;

    for (uint32_t i = 0; i < plan->n_numeric && !status; i++)
        status =
            line_parser_numeric(plan, i, spans[plan->numeric_columns[i]], &numeric[i], why);
    return status;
}

static int64_t bucket_of(double x)
{
    double ln;

    if (x < 0)
        return -1;
    if (x < 3)
        return (int64_t)x;
    ln = log(x);
    return (int64_t)(ln * ln) + 2;
}

static uint64_t key_of(const struct line_parser_field *field, const void *bytes, size_t n)
{
    return line_parser_key_of(field, XXH3_64bits_withSeed(bytes, n, field->seed));
}

static int bucket_key(const struct line_parser_plan *plan, uint32_t field,
                      struct line_parser_span token, uint64_t *ret_key, struct err *why)
{
    uint8_t bytes[8];
    uint64_t bucket;
    double x;

    if (!line_parser_decimal(token.at, token.len, &x))
        return line_parser_refuse(plan, plan->fields[field].column, token, "is not a number",
                                  why);
    bucket = (uint64_t)bucket_of(x);
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(bucket >> (8 * i));
    *ret_key = key_of(&plan->fields[field], bytes, sizeof bytes);
    return 0;
}

static int add_key(struct batch *b, uint64_t key)
{
    if (b->n_keys == b->keys_cap && batch_reserve_keys(b, 1))
        return -ENOMEM;
    b->keys[b->n_keys++] = key;
    return 0;
}

/* A key for each part between separators that is not missing. */
static int add_parts(const struct line_parser_plan *plan, uint32_t field,
                     struct line_parser_span token, struct batch *b)
{
    size_t separator_len = strlen(plan->inner_separator);
    char *end = token.at + token.len, *hit;

    do {
        struct line_parser_span part = { token.at, (size_t)(end - token.at) };

        hit = memmem(part.at, part.len, plan->inner_separator, separator_len);
        if (hit)
            part.len = (size_t)(hit - part.at);
        token.at = hit ? hit + separator_len : end;
        if (line_parser_is_missing(plan, part))
            continue;
        if (add_key(b, key_of(&plan->fields[field], part.at, part.len)))
            return -ENOMEM;
    } while (hit);
    return 0;
}

int line_parser_value_keys(const struct line_parser_plan *plan, uint32_t field,
                           struct line_parser_span token, struct batch *b, struct err *why)
{
    uint64_t key = 0;
    int status;

    if (line_parser_is_missing(plan, token))
        return 0;
    if (plan->fields[field].is_bucket) {
        status = bucket_key(plan, field, token, &key, why);
        return status ? status : add_key(b, key);
    }
    if (!plan->inner_separator[0])
        return add_key(b, key_of(&plan->fields[field], token.at, token.len));
    return add_parts(plan, field, token, b);
}

static int add_field(const struct line_parser_plan *plan, uint32_t field,
                     struct line_parser_span token, struct batch *b, struct err *why)
{
    uint32_t n_keys_before = b->n_keys;
    int status = line_parser_value_keys(plan, field, token, b, why);

    if (status || b->n_keys > n_keys_before || !plan->missing_has_key)
        return status;
    return add_key(b, key_of(&plan->fields[field], "", 0));
}

int line_parser_keys(const struct line_parser_plan *plan, uint32_t field, char *token,
                     size_t len, struct batch *b, struct err *why)
{
    uint32_t n_keys_before = b->n_keys;
    int status = add_field(plan, field, (struct line_parser_span){ token, len }, b, why);

    if (status)
        b->n_keys = n_keys_before;
    return status;
}

static int parse_fields(const struct line_parser_plan *plan,
                        const struct line_parser_span *spans, struct batch *b, struct err *why)
{
    uint32_t *ends = b->starts + (size_t)b->n * plan->n_fields + 1;
    uint32_t n_keys_before = b->n_keys;

    for (uint32_t f = 0; f < plan->n_fields; f++) {
        int status = add_field(plan, f, spans[plan->fields[f].column], b, why);

        if (status) {
            b->n_keys = n_keys_before;
            return status;
        }
        ends[f] = b->n_keys;
    }
    return 0;
}

int line_parser_parse(const struct line_parser_plan *plan, char *line, size_t len,
                      struct batch *b, struct err *why)
{
    struct line_parser_span spans[LINE_PARSER_COLUMNS_MAX + 1];
    uint32_t n;
    int status;

    assert(b->n < b->n_max && b->n_numeric == plan->n_numeric && b->n_fields == plan->n_fields);
    assert(!plan->n_labels || b->n_labels == plan->n_labels);
    if (memchr(line, '\0', len))
        return err_set(why, PS_EDATA, "holds a NUL byte: is this text?");
    n = line_parser_split(plan->delimiter, plan->quote, line, len, spans, plan->n_columns + 1);
    if (n != plan->n_columns)
        return refuse_split(plan, n, why);
    status = parse_labels(plan, spans, b, why);
    if (!status)
        status = parse_numeric(plan, spans, b->numeric + (size_t)b->n * plan->n_numeric, why);
    if (!status)
        status = parse_fields(plan, spans, b, why);
    if (!status)
        b->n++;
    return status;
}

int line_parser_check_header(const struct line_parser_plan *plan, char *line, size_t len,
                             struct err *why)
{
    struct line_parser_span spans[LINE_PARSER_COLUMNS_MAX + 1];
    uint32_t n =
        line_parser_split(plan->delimiter, plan->quote, line, len, spans, plan->n_columns + 1);
    char buffer[SHOWN_MAX + 4];

    if (n != plan->n_columns)
        return refuse_split(plan, n, why);
    for (uint32_t i = 0; i < n; i++)
        if (plan->names && plan->names[i] && !equals(spans[i], plan->names[i]))
            return err_set(why, PS_EDATA, "column %u is called '%s', '%s' expected", i,
                           shown(spans[i], buffer), plan->names[i]);
    return 0;
}
