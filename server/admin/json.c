#include "server/admin/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* A byte that is no printable ASCII comes from a peer's idea of a name: it must not break the
 * page. */
static void put_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; text && *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c < 0x7f ? c : '?', out);
    }
    fputc('"', out);
}

static void begin(struct json *j, const char *key)
{
    if (j->comma)
        fputc(',', j->out);
    if (key) {
        put_text(j->out, key);
        fputc(':', j->out);
    }
    j->comma = true;
}

void json_open(struct json *j, const char *key)
{
    begin(j, key);
    fputc('{', j->out);
    j->comma = false;
}

void json_close(struct json *j)
{
    fputc('}', j->out);
    j->comma = true;
}

void json_open_list(struct json *j, const char *key)
{
    begin(j, key);
    fputc('[', j->out);
    j->comma = false;
}

void json_close_list(struct json *j)
{
    fputc(']', j->out);
    j->comma = true;
}

void json_u64(struct json *j, const char *key, uint64_t value)
{
    begin(j, key);
    fprintf(j->out, "%" PRIu64, value);
}

void json_float(struct json *j, const char *key, float value)
{
    char text[32];
    int digits = 6;

    do
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
    while (digits++ < 9 && strtof(text, NULL) != value);
    begin(j, key);
    fputs(text, j->out);
}

void json_maybe_float(struct json *j, const char *key, float value)
{
    if (isfinite(value)) {
        json_float(j, key, value);
        return;
    }
    begin(j, key);
    fputs("null", j->out);
}

void json_seconds(struct json *j, const char *key, uint64_t us)
{
    begin(j, key);
    fprintf(j->out, "%" PRIu64 ".%06" PRIu64, us / 1000000, us % 1000000);
}

void json_bool(struct json *j, const char *key, bool value)
{
    begin(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_text(struct json *j, const char *key, const char *value)
{
    begin(j, key);
    put_text(j->out, value);
}
