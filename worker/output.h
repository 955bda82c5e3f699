/*
 * The file that a command writes its answer to: whole or not at all. What stood there stays until all has been
 * written, as PATH.part, which then takes its name; a failure removes the part. What is no plain file (a FIFO,
 * a device, /dev/stdout and whatever else lies below /dev and /proc) cannot be replaced and is written directly,
 * and "-" is stdout.
 */
#ifndef WORKER_OUTPUT_H
#define WORKER_OUTPUT_H

#include <limits.h>
#include <stdio.h>

#include "common/status.h"

struct output {
    FILE *stream;             /* to write to; owned, unless it is stdout */
    char path[PATH_MAX];      /* behind all links */
    char part[PATH_MAX + 8u]; /* "": written directly */
};

/* A negative errno, and a sentence, when the file or its part cannot be made; nothing is left to close then. */
int output_open(const char *path, struct output *ret, struct err *err) MUST_CHECK;

/* status: how the writing went. 0: the file gets its name; else, or if that fails, the part is removed. Returns
 * status, or what failed here. */
int output_close(struct output *o, int status, struct err *err) MUST_CHECK;

#endif
