/*
 * Where text goes: a file, plain or packed with zstd as its name ends, or stdout ("-"). The
 * first failure is kept; a file that could not be finished is removed.
 */
#ifndef WORKER_DATA_OUTPUT_STREAM_H
#define WORKER_DATA_OUTPUT_STREAM_H

#include "common/status.h"

struct output_stream;

int output_stream_open(const char *path, struct output_stream **ret_sink, struct err *err)
    MUST_CHECK;
int output_stream_write(struct output_stream *s, const void *bytes, size_t n_bytes,
                        struct err *err) MUST_CHECK;

/* Writes what is left and frees the sink in any case; `status` is how the writing went so far,
 * and is returned if it was a failure. */
int output_stream_close(struct output_stream *s, int status, struct err *err) MUST_CHECK;

#endif
