/*
 * The lines of a file, packed or not (input_stream.h), one after another: borrowed, without their
 * end, counted from 1. Lines end in LF or CR LF, the last one also with the file; a byte order
 * mark before the first is dropped; empty lines are passed over, though counted. A last line that a stop has left
 * unfinished (input_pipe.h) is dropped.
 */
#ifndef WORKER_DATA_LINE_READER_H
#define WORKER_DATA_LINE_READER_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/input_pipe.h"

#define LINE_READER_LINE_MAX (1024u * 1024u) /* bytes, with the line's end */
/* Bytes of a longer line, or of empty lines, one after another: with more of them it is no text of lines (PS_EDATA). */
#define LINE_READER_PASSED_OVER_MAX (16u * LINE_READER_LINE_MAX)

struct line_reader;

/* bytes: borrowed until the next call, free to scribble on, not
 * NUL-terminated; NULL at the end. */
struct line_reader_line {
    char *bytes;
    size_t len;
    uint64_t number;
    bool
        too_long; /* longer than LINE_READER_LINE_MAX: len is 0, and bytes holds nothing of use */
};

int line_reader_open(const char *path, struct line_reader **ret_reader, struct err *err)
    MUST_CHECK;
/* Of a pipe (NULL: of the file), from where it was begun. */
int line_reader_open_pipe(const char *path, struct input_pipe *pipe,
                          struct line_reader **ret_reader, struct err *err) MUST_CHECK;
/* A prescan, if path is one of the pipes, else the file. pipes may be NULL. */
int line_reader_open_prescan(struct input_pipes *pipes, const char *path,
                             struct line_reader **ret_reader, struct err *err) MUST_CHECK;
int line_reader_next(struct line_reader *r, struct line_reader_line *ret_line, struct err *err)
    MUST_CHECK;
void line_reader_close(struct line_reader *r);

/* Bytes of text, unpacked, behind all lines read so far. */
uint64_t line_reader_bytes(const struct line_reader *r);

/* By a prescan: the first line, NUL-terminated, the caller's to free(); PS_EDATA for a file without one. */
int line_reader_first_line(struct input_pipes *pipes, const char *path, char **ret_line,
                           struct err *err) MUST_CHECK;

#endif
