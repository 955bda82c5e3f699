/*
 * Inputs that can be read only once: standard input ("-"), FIFOs, a shell's <(...), sockets, terminals.
 *
 * Before the pass over the rows a run reads the beginning of its data: the header, a first batch, means of
 * columns. A prescan keeps the bytes that it reads; the next one and the pass get them again, so a pass over a pipe
 * has the same text as one over a file. A second pass is refused.
 *
 *     prescan   from the first byte on; what comes from the pipe is kept
 *     pass      the kept bytes, then the pipe; each byte is freed once it is read
 */
#ifndef WORKER_DATA_INPUT_PIPE_H
#define WORKER_DATA_INPUT_PIPE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/status.h"

struct input_pipe;
struct input_pipes; /* of one run; used by one thread at a time */

enum input_pipe_use { INPUT_PIPE_PRESCAN, INPUT_PIPE_PASS };

/* True if the path exists and is not a regular file. */
bool input_pipe_is_one(const char *path);

#define INPUT_PIPE_NAME_MAX 90u

/* A path in a sentence: "standard input" for "-", else its last INPUT_PIPE_NAME_MAX bytes. */
const char *input_pipe_name(const char *path);

struct input_pipes *input_pipes_new(void);
void input_pipes_free(struct input_pipes *pipes);

/* Notes the path if it is a pipe; nothing is opened. PS_ESETTING: the same pipe was added before, by any name. */
int input_pipes_add(struct input_pipes *pipes, const char *path, struct err *err) MUST_CHECK;

bool input_pipes_is_empty(const struct input_pipes *pipes);

/* From here on prescans ask is_stopped(arg), too, whether to wait on; arg is borrowed. */
void input_pipes_set_stop(struct input_pipes *pipes, bool (*is_stopped)(const void *arg),
                          const void *arg);

/* *ret: the pipe, borrowed, at its first byte; NULL: path is a file, or pipes is NULL. Once *stop is true (it may be
 * NULL) a read ends as at the end of the text (input_pipe_is_stopped()). PS_ESETTING: its pass has begun before;
 * -errno. */
int input_pipes_begin(struct input_pipes *pipes, const char *path, enum input_pipe_use use,
                      const atomic_bool *stop, struct input_pipe **ret, struct err *err)
    MUST_CHECK;

/* Up to n_bytes; 0 at the end. Waits for the writer. */
int input_pipe_read(struct input_pipe *p, void *dst, size_t n_bytes, size_t *ret_n,
                    struct err *err) MUST_CHECK;

/* True once a stop has ended a read: the text ends anywhere, and what it ends with is no whole line or frame.
 * p may be NULL. */
bool input_pipe_is_stopped(const struct input_pipe *p);

#endif
