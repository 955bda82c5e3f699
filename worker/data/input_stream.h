/*
 * The bytes of a file as its writer had them: plain, or unpacked on the way from zstd or gzip.
 * The first bytes of a file decide its kind, not its name; several zstd frames or gzip members one
 * after another are one text. Packed data that ends too early, or that does not unpack, is
 * PS_EDATA, never a short text, unless a stop has ended a read (input_pipe_is_stopped()).
 */
#ifndef WORKER_DATA_INPUT_STREAM_H
#define WORKER_DATA_INPUT_STREAM_H

#include "common/status.h"
#include "worker/data/input_pipe.h"

struct input_stream;

/* Of a file, or, unless it is NULL, of a pipe, which is borrowed; then the path is for sentences. A negative errno
 * when the file cannot be opened, PS_EDATA when it is not what its name says. */
int input_stream_open(const char *path, struct input_pipe *pipe,
                      struct input_stream **ret_source, struct err *err) MUST_CHECK;

/* Up to n_bytes, at least one except at the end of the text. */
int input_stream_read(struct input_stream *s, void *dst, size_t n_bytes, size_t *ret_n_bytes,
                      struct err *err) MUST_CHECK;

void input_stream_close(struct input_stream *s);

#endif
