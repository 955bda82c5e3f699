#include "worker/data/line_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/memory.h"
#include "worker/data/input_stream.h"

#define READ_BYTES (256u * 1024u)

struct line_reader {
    struct input_stream *source; /* owned */
    struct input_pipe *pipe;     /* borrowed; NULL: a file */
    struct bytes text;           /* read and not yet handed out */
    const char *name;            /* of its path in sentences; owned, behind the struct */
    size_t line_bytes; /* of the text's front, handed out and to be consumed at the next call */
    uint64_t n_lines, n_bytes;
    uint64_t n_bytes_before; /* the line that is looked for now */
    bool ended;              /* the source has no more */
};

int line_reader_open_pipe(const char *path, struct input_pipe *pipe,
                          struct line_reader **ret_reader, struct err *err)
{
    const char *name = input_pipe_name(path);
    size_t name_bytes = strlen(name) + 1;
    struct line_reader *r = memory_try_alloc(sizeof *r + name_bytes);
    int status;

    if (!r)
        return err_set(err, -ENOMEM, "%s: no memory to read it", name);
    r->name = memcpy(r + 1, name, name_bytes);
    r->pipe = pipe;
    status = input_stream_open(path, pipe, &r->source, err);
    if (status) {
        line_reader_close(r);
        return status;
    }
    *ret_reader = r;
    return 0;
}

int line_reader_open(const char *path, struct line_reader **ret_reader, struct err *err)
{
    return line_reader_open_pipe(path, NULL, ret_reader, err);
}

int line_reader_open_prescan(struct input_pipes *pipes, const char *path,
                             struct line_reader **ret_reader, struct err *err)
{
    struct input_pipe *pipe;
    int status = input_pipes_begin(pipes, path, INPUT_PIPE_PRESCAN, NULL, &pipe, err);

    return status ? status : line_reader_open_pipe(path, pipe, ret_reader, err);
}

void line_reader_close(struct line_reader *r)
{
    if (!r)
        return;
    input_stream_close(r->source);
    bytes_deinit(&r->text);
    free(r);
}

uint64_t line_reader_bytes(const struct line_reader *r)
{
    return r->n_bytes;
}

/* A prescan keeps all that it reads, and a device has no end. */
static int check_passed_over(const struct line_reader *r, struct err *err)
{
    if (r->n_bytes - r->n_bytes_before <= LINE_READER_PASSED_OVER_MAX)
        return 0;
    return err_set(err, PS_EDATA,
                   "%s:%" PRIu64 ": more than %u MiB without a line of at most %u MiB", r->name,
                   r->n_lines, LINE_READER_PASSED_OVER_MAX >> 20, LINE_READER_LINE_MAX >> 20);
}

static int read_more(struct line_reader *r, struct err *err)
{
    int status = check_passed_over(r, err);
    uint8_t *space = status ? NULL : bytes_reserve(&r->text, READ_BYTES);
    size_t n = 0;

    if (status)
        return status;
    if (!space)
        return err_set(err, -ENOMEM, "%s: no memory for a line", r->name);
    status = input_stream_read(r->source, space, READ_BYTES, &n, err);
    if (status)
        return status;
    bytes_commit(&r->text, n);
    r->ended = n == 0;
    return 0;
}

/*
 * Bytes up to and with the next LF, or to the end of the file, 0 at the end; reads as far as it
 * must. LINE_READER_LINE_MAX + 1 when there is no LF within the limit.
 */
static int find_line(struct line_reader *r, size_t *ret_n_bytes, struct err *err)
{
    size_t seen = 0;
    int status = 0;

    for (;;) {
        size_t n = bytes_len(&r->text);
        const uint8_t *front = n ? bytes_front(&r->text) : NULL;
        const uint8_t *lf = n > seen ? memchr(front + seen, '\n', n - seen) : NULL;

        if (!lf && r->ended && input_pipe_is_stopped(r->pipe))
            n = 0;
        if (lf || n > LINE_READER_LINE_MAX || r->ended) {
            *ret_n_bytes = lf ? (size_t)(lf - front) + 1 : n;
            if (*ret_n_bytes > LINE_READER_LINE_MAX)
                *ret_n_bytes = LINE_READER_LINE_MAX + 1;
            return 0;
        }
        seen = n;
        status = read_more(r, err);
        if (status)
            return status;
    }
}

static void take(struct line_reader *r, size_t n_bytes)
{
    bytes_consume(&r->text, n_bytes);
    r->n_bytes += n_bytes;
}

/* Drops the rest of a line that is over the limit. */
static int skip_line(struct line_reader *r, struct err *err)
{
    int status;

    for (;;) {
        size_t n = bytes_len(&r->text);
        const uint8_t *lf = n ? memchr(bytes_front(&r->text), '\n', n) : NULL;

        take(r, lf ? (size_t)(lf - bytes_front(&r->text)) + 1 : n);
        if (lf || r->ended)
            return 0;
        status = read_more(r, err);
        if (status)
            return status;
    }
}

static void trim(struct line_reader *r, struct line_reader_line *line, size_t n_bytes)
{
    static const char mark[3] = { '\xef', '\xbb', '\xbf' };

    line->bytes = (char *)r->text.bytes + r->text.start;
    line->len = n_bytes;
    if (line->len && line->bytes[line->len - 1] == '\n')
        line->len--;
    if (line->len && line->bytes[line->len - 1] == '\r')
        line->len--;
    if (line->number == 1 && line->len >= sizeof mark &&
        memcmp(line->bytes, mark, sizeof mark) == 0) {
        line->bytes += sizeof mark;
        line->len -= sizeof mark;
    }
}

int line_reader_next(struct line_reader *r, struct line_reader_line *ret_line, struct err *err)
{
    size_t n_bytes = 0;
    int status;

    r->n_bytes_before = r->n_bytes + r->line_bytes;
    do {
        *ret_line = (struct line_reader_line){ 0 };
        take(r, r->line_bytes);
        r->line_bytes = 0;
        status = find_line(r, &n_bytes, err);
        if (status || n_bytes == 0)
            return status;
        ret_line->number = ++r->n_lines;
        if (n_bytes > LINE_READER_LINE_MAX) {
            ret_line->bytes = (char *)r->text.bytes;
            ret_line->too_long = true;
            return skip_line(r, err);
        }
        r->line_bytes = n_bytes;
        trim(r, ret_line, n_bytes);
    } while (ret_line->len == 0);
    return 0;
}

int line_reader_first_line(struct input_pipes *pipes, const char *path, char **ret_line,
                           struct err *err)
{
    struct line_reader_line line;
    struct line_reader *r;
    int status = line_reader_open_prescan(pipes, path, &r, err);

    if (status)
        return status;
    status = line_reader_next(r, &line, err);
    if (!status && (!line.bytes || line.too_long))
        status = err_set(err, PS_EDATA, "%s: %s", r->name,
                         line.bytes ? "its first line is longer than 1 MiB" : "holds no line");
    if (!status) {
        *ret_line = memory_try_alloc(line.len + 1);
        if (*ret_line)
            memcpy(*ret_line, line.bytes, line.len);
        else
            status = err_set(err, -ENOMEM, "%s: no memory for its first line", r->name);
    }
    line_reader_close(r);
    return status;
}
