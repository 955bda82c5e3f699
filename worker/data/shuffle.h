/*
 * A shuffle window: for each line that comes in it returns one of its lines at random. Order within about `n_max`
 * lines is lost, memory stays bounded. Its output is a pure function of the seed and of its input.
 */
#ifndef WORKER_DATA_SHUFFLE_H
#define WORKER_DATA_SHUFFLE_H

#include "common/base.h"

struct shuffle;

/* A line. An output is borrowed until the next call, and the caller may change its bytes; NULL: none. */
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

/* Returns the next of the remaining lines once the input has ended, or bytes NULL. */
void shuffle_drain(struct shuffle *s, struct shuffle_line *ret_out);

#endif
