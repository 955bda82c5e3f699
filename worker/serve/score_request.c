#include "worker/serve/score_request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"

#define DEPTH_MAX 4u /* an object of rows of values of parts */
#define NO_INPUT UINT16_MAX
#define SHOWN_MAX 40u

/* ---- the model's inputs ---- */

struct input {
    char name[SCHEMA_NAME_MAX];
    size_t len;
    uint16_t place; /* numerics first, then fields */
};

struct score_columns {
    const struct schema *schema;         /* borrowed */
    const struct line_parser_plan *plan; /* borrowed */
    uint32_t n;
    struct input *inputs;  /* owned, by place */
    struct input *by_name; /* owned, ascending */
};

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len)
{
    const size_t len = a_len < b_len ? a_len : b_len;
    const int order = memcmp(a, b, len);

    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int compare_inputs(const void *a, const void *b)
{
    const struct input *left = a, *right = b;

    return compare_names(left->name, left->len, right->name, right->len);
}

static void name_inputs(struct score_columns *c)
{
    const uint32_t n_numeric = schema_n_numeric(c->schema);

    for (uint32_t i = 0; i < c->n; i++) {
        struct input *input = &c->inputs[i];

        if (i < n_numeric)
            schema_numeric_id(c->schema, i, input->name);
        else
            schema_field_id(c->schema, i - n_numeric, input->name);
        input->len = strlen(input->name);
        input->place = (uint16_t)i;
    }
    memcpy(c->by_name, c->inputs, c->n * sizeof *c->inputs);
    qsort(c->by_name, c->n, sizeof *c->by_name, compare_inputs);
}

int score_columns_new(const struct schema *schema, struct score_columns **ret, struct err *err)
{
    const uint32_t n = schema_n_numeric(schema) + schema_n_fields(schema);
    struct score_columns *c = memory_try_alloc(sizeof *c);

    if (c) {
        *c = (struct score_columns){ .schema = schema,
                                     .plan = schema_plan_unlabelled(schema),
                                     .n = n,
                                     .inputs = memory_try_alloc(n * sizeof *c->inputs),
                                     .by_name = memory_try_alloc(n * sizeof *c->by_name) };
    }
    if (!c || !c->inputs || !c->by_name) {
        score_columns_free(c);
        return err_set(err, -ENOMEM, "no memory for the names of %u columns", n);
    }
    name_inputs(c);
    *ret = c;
    return 0;
}

void score_columns_free(struct score_columns *c)
{
    if (!c)
        return;
    free(c->inputs);
    free(c->by_name);
    free(c);
}

uint32_t score_columns_n(const struct score_columns *c)
{
    return c->n;
}

const char *score_columns_name(const struct score_columns *c, uint32_t i)
{
    assert(i < c->n);
    return c->inputs[i].name;
}

/* The first that is not less. */
static uint32_t lower_bound(const struct score_columns *c, struct line_parser_span name)
{
    uint32_t lo = 0, hi = c->n;

    while (lo < hi) {
        const uint32_t mid = (lo + hi) / 2;
        const struct input *input = &c->by_name[mid];

        if (compare_names(input->name, input->len, name.at, name.len) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool is_named(const struct score_columns *c, uint32_t i, struct line_parser_span name)
{
    return i < c->n && c->by_name[i].len == name.len &&
           memcmp(c->by_name[i].name, name.at, name.len) == 0;
}

/* Text of the client's, as a sentence may show it. */
struct shown {
    char text[SHOWN_MAX + 4];
};

static struct shown show(struct line_parser_span span)
{
    const size_t n = span.len < SHOWN_MAX ? span.len : SHOWN_MAX;
    struct shown s;

    for (size_t i = 0; i < n; i++)
        s.text[i] = span.at[i] >= ' ' && span.at[i] <= '~' ? span.at[i] : '?';
    memcpy(s.text + n, span.len > n ? "..." : "", span.len > n ? 4 : 1);
    return s;
}

static int find_input(const struct score_columns *c, struct line_parser_span name,
                      uint16_t *ret_place, struct err *err)
{
    const uint32_t i = lower_bound(c, name);

    if (!is_named(c, i, name))
        return err_set(err, PS_EDATA, "there is no column \"%s\"; GET /model lists them",
                       show(name).text);
    if (is_named(c, i + 1, name))
        return err_set(err, PS_EDATA,
                       "two columns are called \"%s\": send rows as lists of values",
                       show(name).text);
    *ret_place = c->by_name[i].place;
    return 0;
}

/* ---- JSON (RFC 8259): the check of a whole body, which changes nothing ---- */

struct scan {
    const char *begin;
    char *at, *end;
    struct err *err;
};

static int refuse_json(const struct scan *s, const char *what)
{
    return err_set(s->err, PS_EDATA, "the body is no JSON: byte %zu: %s",
                   (size_t)(s->at - s->begin), what);
}

static char next_char(const struct scan *s)
{
    return s->at < s->end ? *s->at : '\0';
}

static void skip_blanks(struct scan *s)
{
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

/* The next character that is no blank is this one, and is taken. */
static bool take(struct scan *s, char c)
{
    skip_blanks(s);
    if (next_char(s) != c || s->at == s->end)
        return false;
    s->at++;
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits behind \u; -1: they are none. */
static int32_t hex4(const char *at, const char *end)
{
    int32_t code = 0;

    if (end - at < 4)
        return -1;
    for (unsigned i = 0; i < 4; i++) {
        const int digit = hex_digit(at[i]);

        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Behind the backslash: how many characters the escape has; 0: it is none. Half a surrogate pair is none. */
static size_t escape_len(const char *at, const char *end)
{
    int32_t code;

    if (at == end)
        return 0;
    if (*at != 'u')
        return *at && strchr("\"\\/bfnrt", *at) ? 1 : 0;
    code = hex4(at + 1, end);
    if (code < 0 || (code >= 0xdc00 && code < 0xe000))
        return 0;
    if (code < 0xd800 || code >= 0xe000)
        return 5;
    if (end - at < 11 || at[5] != '\\' || at[6] != 'u')
        return 0;
    code = hex4(at + 7, end);
    return code >= 0xdc00 && code < 0xe000 ? 11 : 0;
}

/* From the opening quote to behind the closing one. */
static int scan_string(struct scan *s)
{
    s->at++;
    while (s->at < s->end && *s->at != '"') {
        if ((unsigned char)*s->at < 0x20)
            return refuse_json(s, "a control character in a string");
        if (*s->at == '\\') {
            const size_t len = escape_len(s->at + 1, s->end);

            if (!len)
                return refuse_json(s, "an escape that there is not");
            s->at += len;
        }
        s->at++;
    }
    if (s->at == s->end)
        return refuse_json(s, "a string has no end");
    s->at++;
    return 0;
}

static bool take_digits(struct scan *s)
{
    const char *begin = s->at;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > begin;
}

static int scan_number(struct scan *s)
{
    s->at += next_char(s) == '-';
    if (next_char(s) == '0')
        s->at++;
    else if (!take_digits(s))
        return refuse_json(s, "a value was expected; NaN and Infinity are no numbers of JSON");
    if (next_char(s) == '.') {
        s->at++;
        if (!take_digits(s))
            return refuse_json(s, "a digit was expected");
    }
    if (next_char(s) == 'e' || next_char(s) == 'E') {
        s->at++;
        s->at += next_char(s) == '-' || next_char(s) == '+';
        if (!take_digits(s))
            return refuse_json(s, "a digit was expected");
    }
    return 0;
}

static bool take_word(struct scan *s, const char *word)
{
    const size_t len = strlen(word);

    if ((size_t)(s->end - s->at) < len || memcmp(s->at, word, len) != 0)
        return false;
    s->at += len;
    return true;
}

static int scan_scalar(struct scan *s)
{
    if (next_char(s) == '"')
        return scan_string(s);
    if (take_word(s, "true") || take_word(s, "false") || take_word(s, "null"))
        return 0;
    return scan_number(s);
}

static int scan_value(struct scan *s, unsigned depth, uint32_t *ret_n);

/* Behind the opening bracket, to behind the closing one. *ret_n: values. */
static int scan_values(struct scan *s, bool is_object, unsigned depth, uint32_t *ret_n)
{
    const char close = is_object ? '}' : ']';
    uint32_t ignored;
    int status = 0;

    *ret_n = 0;
    if (take(s, close))
        return 0;
    do {
        skip_blanks(s);
        if (is_object) {
            if (next_char(s) != '"')
                return refuse_json(s, "a name in quotes was expected");
            status = scan_string(s);
            if (!status && !take(s, ':'))
                status = refuse_json(s, "a colon was expected");
            skip_blanks(s);
        }
        if (!status)
            status = scan_value(s, depth + 1, &ignored);
        ++*ret_n;
    } while (!status && take(s, ','));
    if (!status && !take(s, close))
        status = refuse_json(s, is_object ? "a comma or } was expected"
                                          : "a comma or ] was expected");
    return status;
}

/* Blanks before it are skipped already. */
static int scan_value(struct scan *s, unsigned depth, uint32_t *ret_n)
{
    const char c = next_char(s);

    if (c != '{' && c != '[')
        return scan_scalar(s);
    if (depth == DEPTH_MAX)
        return refuse_json(s, "nested more deeply than rows are");
    s->at++;
    return scan_values(s, c == '{', depth, ret_n);
}

/* ---- strings, in place ---- */

static char *put_utf8(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

/* Behind the backslash. An escape is never shorter than its character. */
static const char *unescape(const char *at, const char *end, char **to)
{
    static const char escapes[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
    int32_t code, low;

    if (*at != 'u') {
        *(*to)++ = characters[strchr(escapes, *at) - escapes];
        return at + 1;
    }
    code = hex4(at + 1, end);
    at += 5;
    if (code >= 0xd800 && code < 0xdc00) {
        low = hex4(at + 2, end);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        at += 6;
    }
    *to = put_utf8(*to, (uint32_t)code);
    return at;
}

/* Reads the string that begins at s->at, and was checked; its bytes end up there. */
static struct line_parser_span take_string(struct scan *s)
{
    char *begin = s->at + 1, *to;
    const char *at = begin;

    while (*at != '"' && *at != '\\')
        at++;
    to = begin + (at - begin);
    while (*at != '"') {
        if (*at == '\\')
            at = unescape(at + 1, s->end, &to);
        else
            *to++ = *at++;
    }
    s->at = begin + (at - begin) + 1;
    return (struct line_parser_span){ begin, (size_t)(to - begin) };
}

/* ---- the values of a row ---- */

enum kind { KIND_NONE, KIND_TOKEN, KIND_LIST };

struct value {
    enum kind kind;
    bool is_given;
    struct line_parser_span token; /* of a list: behind its bracket, to its end */
};

/* A string or a number; null is the empty token. */
static int take_token(struct scan *s, struct line_parser_span *ret)
{
    char *begin = s->at;
    struct err ignored;
    struct scan number = *s;

    *ret = (struct line_parser_span){ begin, 0 };
    if (*begin == '"') {
        *ret = take_string(s);
        if (memchr(ret->at, '\0', ret->len))
            return err_set(s->err, PS_EDATA, "a NUL byte in a text");
        return 0;
    }
    if (take_word(s, "null"))
        return 0;
    number.err = &ignored;
    if (scan_number(&number))
        return err_set(s->err, PS_EDATA, "%s is neither a text nor a number",
                       *begin == 't'   ? "true"
                       : *begin == 'f' ? "false"
                                       : "an object or a list");
    s->at = number.at;
    ret->len = (size_t)(s->at - begin);
    return 0;
}

static int take_value(struct scan *s, struct value *v)
{
    uint32_t n;

    skip_blanks(s);
    v->is_given = true;
    if (*s->at != '[') {
        v->kind = KIND_TOKEN;
        return take_token(s, &v->token);
    }
    v->kind = KIND_LIST;
    v->token.at = ++s->at;
    if (scan_values(s, false, 0, &n)) /* it was checked before */
        return PS_EDATA;
    v->token.len = (size_t)(s->at - v->token.at);
    return 0;
}

static int name_input(const struct score_columns *c, uint16_t place, struct err *err)
{
    const struct err why = *err;

    return err_set(err, PS_EDATA, "column \"%.60s\": %.150s", c->inputs[place].name, why.text);
}

/* A row that is an object. In most requests all rows have their members in one order. */
static int take_object(struct score_request *r, struct scan *s, struct value *values)
{
    const struct score_columns *c = r->columns;
    uint32_t at = 0;
    int status;

    if (take(s, '}'))
        return 0;
    do {
        struct line_parser_span name;
        uint16_t place = at < c->n ? r->places[at] : NO_INPUT;

        skip_blanks(s);
        name = take_string(s);
        (void)take(s, ':');
        if (place == NO_INPUT || c->inputs[place].len != name.len ||
            memcmp(c->inputs[place].name, name.at, name.len) != 0) {
            status = find_input(c, name, &place, s->err);
            if (status)
                return status;
        }
        if (values[place].is_given)
            return err_set(s->err, PS_EDATA, "column \"%s\" stands there twice",
                           show(name).text);
        if (at < c->n)
            r->places[at++] = place;
        status = take_value(s, &values[place]);
        if (status)
            return name_input(c, place, s->err);
    } while (take(s, ','));
    (void)take(s, '}');
    return 0;
}

static int take_list(struct score_request *r, struct scan *s, struct value *values)
{
    uint32_t n = 0;

    if (!take(s, ']')) {
        do {
            if (n == r->n_listed)
                return err_set(s->err, PS_EDATA, "more than the %u values expected",
                               r->n_listed);
            if (take_value(s, &values[r->listed[n]]))
                return name_input(r->columns, r->listed[n], s->err);
            n++;
        } while (take(s, ','));
        (void)take(s, ']');
    }
    return n == r->n_listed ? 0
                            : err_set(s->err, PS_EDATA, "%u value%s, %u expected", n,
                                      NUMBER_PLURAL(n), r->n_listed);
}

/* ---- values -> a sample ---- */

/* The keys of a list's parts, as those of a Parquet LIST. */
static int add_parts(const struct line_parser_plan *plan, uint32_t field, const struct value *v,
                     struct batch *b, struct err *err)
{
    struct scan s = {
        .begin = v->token.at, .at = v->token.at, .end = v->token.at + v->token.len, .err = err
    };
    const uint32_t n_before = b->n_keys;
    struct line_parser_span token;
    int status = 0;

    if (!take(&s, ']'))
        do {
            skip_blanks(&s);
            status = take_token(&s, &token);
            if (!status)
                status = line_parser_value_keys(plan, field, token, b, err);
        } while (!status && take(&s, ','));
    if (!status && b->n_keys == n_before)
        status = line_parser_keys(plan, field, v->token.at, 0, b, err);
    return status;
}

static int add_field(const struct line_parser_plan *plan, uint32_t field, const struct value *v,
                     struct batch *b, struct err *err)
{
    if (v->kind == KIND_LIST)
        return add_parts(plan, field, v, b, err);
    if (v->kind == KIND_TOKEN)
        return line_parser_keys(plan, field, v->token.at, v->token.len, b, err);
    return line_parser_keys(plan, field, (char *)(uintptr_t) "", 0, b, err); /* not changed */
}

/* Errors leave the batch's count of samples and of keys to the caller. */
static int add_sample(const struct line_parser_plan *plan, const struct value *values,
                      struct batch *b, struct err *err)
{
    float *numeric = b->numeric + (size_t)b->n * plan->n_numeric;
    uint32_t *ends = b->starts + (size_t)b->n * plan->n_fields + 1;
    int status = 0;

    for (uint32_t i = 0; i < plan->n_numeric && !status; i++) {
        if (values[i].kind == KIND_LIST)
            return err_set(err, PS_EDATA, "column \"%.60s\": a list is no number",
                           plan->names && plan->names[plan->numeric_columns[i]]
                               ? plan->names[plan->numeric_columns[i]]
                               : "");
        status = line_parser_numeric(plan, i, values[i].token, &numeric[i], err);
    }
    for (uint32_t f = 0; f < plan->n_fields && !status; f++) {
        status = add_field(plan, f, &values[plan->n_numeric + f], b, err);
        ends[f] = b->n_keys;
    }
    b->label[b->n] = 0;
    return status;
}

static int read_row(struct score_request *r, struct scan *s, struct batch *b)
{
    struct value values[LINE_PARSER_COLUMNS_MAX];
    int status;

    memset(values, 0, r->columns->n * sizeof *values);
    skip_blanks(s);
    if (take(s, '{'))
        status = take_object(r, s, values);
    else if (take(s, '['))
        status = take_list(r, s, values);
    else
        status = err_set(s->err, PS_EDATA, "neither an object nor a list of values");
    return status ? status : add_sample(r->columns->plan, values, b, s->err);
}

int score_request_read(struct score_request *r, struct batch *b, struct err *err)
{
    struct scan s = { .begin = r->at, .at = r->at, .end = r->end, .err = err };

    assert(b->n_numeric == r->columns->plan->n_numeric &&
           b->n_fields == r->columns->plan->n_fields);
    while (r->n_read < r->n_rows && b->n < b->n_max) {
        const uint32_t n_keys = b->n_keys;
        struct err why = { 0 };
        int status;

        s.err = &why;
        status = read_row(r, &s, b);
        if (status) {
            b->n_keys = n_keys;
            return status == PS_EDATA
                       ? err_set(err, status, "row %u: %.230s", r->n_read, why.text)
                       : err_set(err, status, "no memory for a row");
        }
        b->n++;
        r->n_read++;
        (void)take(&s, ',');
    }
    r->at = s.at;
    return 0;
}

/* ---- the body ---- */

/* What the check has found: behind the bracket of each list. */
struct found {
    char *rows, *columns; /* NULL: not there */
    uint32_t n_rows, n_columns;
};

static int scan_list(struct scan *s, const char *name, char **ret, uint32_t *ret_n)
{
    if (*ret)
        return err_set(s->err, PS_EDATA, "\"%s\" stands there twice", name);
    if (!take(s, '['))
        return err_set(s->err, PS_EDATA, "\"%s\" is no list", name);
    *ret = s->at;
    return scan_values(s, false, 1, ret_n);
}

static int scan_member(struct scan *s, struct found *found)
{
    char *begin;
    struct line_parser_span name;

    skip_blanks(s);
    begin = s->at;
    if (next_char(s) != '"')
        return refuse_json(s, "a name in quotes was expected");
    if (scan_string(s))
        return PS_EDATA;
    name = (struct line_parser_span){ begin + 1, (size_t)(s->at - begin) - 2 };
    if (!take(s, ':'))
        return refuse_json(s, "a colon was expected");
    if (name.len == 4 && memcmp(name.at, "rows", 4) == 0)
        return scan_list(s, "rows", &found->rows, &found->n_rows);
    if (name.len == 7 && memcmp(name.at, "columns", 7) == 0)
        return scan_list(s, "columns", &found->columns, &found->n_columns);
    return err_set(s->err, PS_EDATA,
                   "\"%s\" is unknown; a body has \"rows\", and may have "
                   "\"columns\"",
                   show(name).text);
}

static int scan_body(struct scan *s, struct found *found)
{
    int status;

    if (!take(s, '{'))
        return refuse_json(s, "an object was expected: {\"rows\": [...]}");
    if (take(s, '}'))
        return err_set(s->err, PS_EDATA, "there are no \"rows\"");
    do
        status = scan_member(s, found);
    while (!status && take(s, ','));
    if (!status && !take(s, '}'))
        status = refuse_json(s, "a comma or } was expected");
    skip_blanks(s);
    if (!status && s->at < s->end)
        status = refuse_json(s, "more stands behind its end");
    if (!status && !found->rows)
        status = err_set(s->err, PS_EDATA, "there are no \"rows\"");
    return status;
}

/* The client's order of a list's values. */
static int take_columns(struct score_request *r, const struct found *found, struct err *err)
{
    struct scan s = {
        .begin = found->columns, .at = found->columns, .end = r->end, .err = err
    };
    int status = 0;

    r->n_listed = 0;
    if (take(&s, ']'))
        return 0;
    do {
        uint16_t place = 0;

        skip_blanks(&s);
        if (*s.at != '"')
            return err_set(err, PS_EDATA, "\"columns\": names in quotes were expected");
        status = find_input(r->columns, take_string(&s), &place, err);
        for (uint32_t i = 0; i < r->n_listed && !status; i++)
            if (r->listed[i] == place)
                status = err_set(err, PS_EDATA, "\"columns\": \"%s\" stands there twice",
                                 score_columns_name(r->columns, place));
        if (!status)
            r->listed[r->n_listed++] = place;
    } while (!status && take(&s, ','));
    return status;
}

static int alloc_places(struct score_request *r, struct err *err)
{
    const uint32_t n = r->columns->n;

    r->places = memory_try_alloc(n * sizeof *r->places);
    r->listed = memory_try_alloc(n * sizeof *r->listed);
    if (!r->places || !r->listed)
        return err_set(err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0; i < n; i++)
        r->places[i] = r->listed[i] = (uint16_t)i;
    r->n_listed = n;
    return 0;
}

int score_request_open(struct score_request *r, const struct score_columns *columns, char *body,
                       size_t n_bytes, struct err *err)
{
    struct scan s = { .begin = body, .at = body, .end = body + n_bytes, .err = err };
    struct found found = { 0 };
    int status = scan_body(&s, &found);

    *r = (struct score_request){ .columns = columns };
    if (status)
        return status;
    r->at = found.rows;
    r->end = body + n_bytes;
    r->n_rows = found.n_rows;
    status = alloc_places(r, err);
    if (!status && found.columns)
        status = take_columns(r, &found, err);
    if (status)
        score_request_close(r);
    return status;
}

void score_request_close(struct score_request *r)
{
    free(r->places);
    free(r->listed);
    *r = (struct score_request){ 0 };
}
