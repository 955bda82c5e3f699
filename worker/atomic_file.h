/*
 * A file that a command writes whole or not at all. The output goes to PATH.part, which takes the name PATH once all
 * is written; until then an older PATH stays. A failure removes PATH.part. A path that is not a plain file (a FIFO, a
 * device, anything below /dev and /proc) cannot be replaced and is written directly. "-" is stdout.
 */
#ifndef WORKER_ATOMIC_FILE_H
#define WORKER_ATOMIC_FILE_H

#include <limits.h>
#include <stdio.h>

#include "common/status.h"

struct atomic_file {
    FILE *stream;             /* to write to; owned, unless it is stdout */
    char path[PATH_MAX];      /* behind all links */
    char part[PATH_MAX + 8u]; /* "": written directly */
};

/* A negative errno, and a sentence, when the file or its part cannot be made; nothing is left to close then. */
int atomic_file_open(const char *path, struct atomic_file *ret, struct err *err) MUST_CHECK;

/* status: how the writing went. 0: the file gets its name; else, or if that fails, the part is removed. Returns
 * status, or what failed here. */
int atomic_file_close(struct atomic_file *o, int status, struct err *err) MUST_CHECK;

/* Whether it could be opened: nothing stays, and what cannot be replaced is not touched. */
int atomic_file_try(const char *path, struct err *err) MUST_CHECK;

/* The whole file. In one piece, so that a failure has its own reason. */
int atomic_file_write(const char *path, const char *text, size_t n_bytes, struct err *err)
    MUST_CHECK;

#endif
