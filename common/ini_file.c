#include "common/ini_file.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"

#define LINE_BYTES_MAX 4000

struct reader {
    FILE *in;
    const char *path;
    unsigned line;     /* the one read last, from 1 */
    char start[64];    /* of that line, for sentences */
    char section[128]; /* inih cuts it after 49 bytes */
    int (*each)(void *arg, const struct ini_file_entry *entry, struct err *err);
    void *arg;
    struct err *err;
    int status;     /* the first refusal: nothing is read after it */
    int read_errno; /* of a failed read */
};

static int refuse_line(struct reader *r, const char *why)
{
    r->status = err_set(r->err, PS_ESETTING, "%.100s:%u: %s", r->path, r->line, why);
    return r->status;
}

/* The head of a section; one that is not closed is for inih to refuse. */
static int read_head(struct reader *r, const char *line)
{
    const size_t n = strcspn(line + 1, "]");

    if (line[1 + n] && n >= sizeof r->section)
        return refuse_line(r, "the head of the section is longer than 127 bytes");
    snprintf(r->section, sizeof r->section, "%.*s", (int)n, line + 1);
    return 0;
}

/* fgets() as inih wants it, but one that refuses what inih would cut, fold or misread. */
static char *read_line(char *dst, int n_bytes, void *stream)
{
    struct reader *r = stream;
    size_t n, n_blanks;

    if (r->status)
        return NULL;
    if (!fgets(dst, n_bytes, r->in)) {
        r->read_errno = ferror(r->in) ? errno : 0;
        return NULL;
    }
    r->line++;
    n = strlen(dst);
    if ((n == 0 || dst[n - 1] != '\n') && !feof(r->in)) {
        refuse_line(r, n + 1 == (size_t)n_bytes
                           ? "the line is longer than 4000 bytes"
                           : "the line holds a NUL byte: is this a text file?");
        return NULL;
    }
    /* A line that starts with blanks would be joined to the value above it. */
    n_blanks = strspn(dst, " \t");
    memmove(dst, dst + n_blanks, n - n_blanks + 1);
    snprintf(r->start, sizeof r->start, "%.*s", (int)strcspn(dst, "\r\n"), dst);
    if (dst[0] == '[' && read_head(r, dst))
        return NULL;
    return dst;
}

/* The byte that the escape at *text (behind its backslash) means, or -1; *text then stands
 * behind it. */
static int read_escape(const char **text)
{
    static const char letters[] = "\"\\tnr", bytes[] = "\"\\\t\n\r";
    const char *letter = **text ? strchr(letters, **text) : NULL;
    unsigned byte;

    if (letter) {
        ++*text;
        return bytes[letter - letters];
    }
    if (**text != 'x' || !isxdigit((unsigned char)(*text)[1]) ||
        !isxdigit((unsigned char)(*text)[2]))
        return -1;
    if (sscanf(*text + 1, "%2x", &byte) != 1 || byte == 0)
        return -1;
    *text += 3;
    return (int)byte;
}

/* What a value that opens with a quote means, into dst, which is as long as the value. NULL, or
 * what is wrong. */
static const char *unquote(const char *value, char *dst)
{
    const char *at = value + 1;
    int byte;

    while (*at && *at != '"') {
        byte = (unsigned char)*at++;
        if (byte == '\\')
            byte = read_escape(&at);
        if (byte < 0)
            return "unknown escape in the quotes: there are \\\" \\\\ \\t \\n \\r and \\xHH";
        *dst++ = (char)byte;
    }
    *dst = '\0';
    if (!*at)
        return "the quote is not closed";
    return at[1] ? "there is text behind the closing quote" : NULL;
}

/* For inih: 0 stops, 1 goes on. */
static int on_entry(void *user, const char *section, const char *name, const char *value)
{
    struct reader *r = user;
    char unquoted[LINE_BYTES_MAX];
    const char *wrong = NULL;
    struct ini_file_entry entry = {
        .path = r->path, .line = r->line, .section = r->section, .name = name, .value = value
    };

    (void)section;
    if (!*name)
        wrong = "there is no name before the =";
    else if (*value == '"') {
        wrong = unquote(value, unquoted);
        entry.value = unquoted;
    }
    if (wrong)
        refuse_line(r, wrong);
    else
        r->status = r->each(r->arg, &entry, r->err);
    return r->status == 0;
}

static int parse(struct reader *r)
{
    char why[160];
    int rc;

    /* Debian's inih keeps its limits in variables; the buffer is as long as the longest line
     * from the start. */
    ini_use_stack = false;
    ini_allow_realloc = false;
    ini_max_line = ini_initial_alloc = LINE_BYTES_MAX + 2;
    ini_allow_multiline = false;
    ini_allow_inline_comments = false;
    ini_stop_on_first_error = true;

    rc = ini_parse_stream(read_line, r, on_entry, r);
    if (r->status)
        return r->status;
    if (r->read_errno)
        return err_set(r->err, PS_ESETTING, "%.100s: cannot be read: %s", r->path,
                       status_text(-r->read_errno));
    if (rc < 0)
        return err_set(r->err, -ENOMEM, "%.100s: no memory to read it", r->path);
    if (rc == 0)
        return 0;
    snprintf(why, sizeof why, "\"%s\" is not \"name = value\", a [section] or a # comment",
             r->start);
    return refuse_line(r, why);
}

int ini_file_read(const char *path,
                  int (*each)(void *arg, const struct ini_file_entry *entry, struct err *err),
                  void *arg, struct err *err)
{
    struct reader r = { .path = path, .each = each, .arg = arg, .err = err };
    int fd = -1, status = file_os.open_read(file_os.state, path, &fd);

    if (status)
        return err_set(err, PS_ESETTING, "%.100s: cannot be read: %s", path,
                       status_text(status));
    r.in = fdopen(fd, "r");
    if (!r.in) {
        close(fd);
        return err_set(err, -ENOMEM, "%.100s: no memory to read it", path);
    }
    status = parse(&r);
    fclose(r.in);
    return status;
}

static bool needs_quotes(const char *value)
{
    size_t n = strlen(value), i;

    if (n == 0)
        return false;
    for (i = 0; i < n; i++)
        if (iscntrl((unsigned char)value[i]))
            return true;
    return value[0] == '"' || value[0] == ' ' || value[n - 1] == ' ';
}

void ini_file_write(FILE *out, const char *name, const char *value)
{
    const char *at;

    if (!needs_quotes(value)) {
        fprintf(out, *value ? "%s = %s\n" : "%s =\n", name, value);
        return;
    }
    fprintf(out, "%s = \"", name);
    for (at = value; *at; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (iscntrl((unsigned char)*at))
            fprintf(out, "\\x%02x", (unsigned char)*at);
        else
            fputc(*at, out);
    }
    fputs("\"\n", out);
}
