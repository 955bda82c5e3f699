/*
 * A window of lines that hands out one of its lines at random for each that comes in: order
 * within about `n_max` lines is lost, memory stays bounded. What it hands out is a pure
 * function of the seed and of what came in.
 */
#ifndef WORKER_DATA_SHUFFLE_H
#define WORKER_DATA_SHUFFLE_H

#include "common/base.h"

struct shuffle;

/* What comes out is borrowed until the next call, and free to scribble on; NULL: none. */
struct shuffle_line {
    char *bytes;
    size_t len;
    uint64_t number; /* the caller's, as is `file` */
    uint32_t file;
};

/* -ENOMEM. */
int shuffle_new(uint32_t n_max, uint64_t seed, struct shuffle **ret_shuffle) MUST_CHECK;
void shuffle_free(struct shuffle *s);

/* Copies `in`; *ret_out has bytes NULL while the window fills. -ENOMEM leaves the window as it
 * was. */
int shuffle_put(struct shuffle *s, const struct shuffle_line *in, struct shuffle_line *ret_out)
    MUST_CHECK;

/* When no more comes in: the next of what is left, or bytes NULL. */
void shuffle_drain(struct shuffle *s, struct shuffle_line *ret_out);

#endif
