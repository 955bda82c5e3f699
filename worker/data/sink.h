/*
 * Where text goes: a file, plain or packed with zstd as its name ends, or stdout ("-"). The
 * first failure is kept; a file that could not be finished is removed.
 */
#ifndef WORKER_DATA_SINK_H
#define WORKER_DATA_SINK_H

#include "common/status.h"

struct sink;

int sink_open(const char *path, struct sink **ret_sink, struct err *err) MUST_CHECK;
int sink_write(struct sink *s, const void *bytes, size_t n_bytes, struct err *err) MUST_CHECK;

/* Writes what is left and frees the sink in any case; `status` is how the writing went so far,
 * and is returned if it was a failure. */
int sink_close(struct sink *s, int status, struct err *err) MUST_CHECK;

#endif
