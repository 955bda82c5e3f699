/*
 * Which rows of the next batch can be read while a batch computes, and which are left for the next batch's pull. Of the
 * next batch's rows
 *
 *     in the batch that computes, too     are left: its push changes them
 *     missing in the copy                 are left: they are on their way from the servers
 *     all others                          are read now: no push changes them before the pull
 *
 *     keys, rows   [what is left, of all sections][what is read now]
 *
 * All keys ascend. This is arithmetic on keys: the owner (param_store_exact_cache.c) has the rows, and sees to it that
 * nothing but the batch's push happens before the pull.
 */
#ifndef WORKER_CACHE_READ_AHEAD_H
#define WORKER_CACHE_READ_AHEAD_H

#include "worker/client/ps_types.h"

struct read_ahead_section {
    struct ps_pull_section asked; /* its arrays are borrowed */
    uint64_t first;               /* of its keys and rows */
    uint32_t n_left;
};

/* Zeroed: empty. */
struct read_ahead {
    uint32_t n;
    struct read_ahead_section sections[SECTIONS_MAX];
    uint64_t n_keys; /* of all of them */
    uint64_t *keys;  /* owned, as rows */
    uint32_t *rows;  /* where in its section each key stands */
    uint64_t cap_keys;
};

void read_ahead_deinit(struct read_ahead *a);

/* The next batch's sections. -ENOMEM: there are none. */
int read_ahead_begin(struct read_ahead *a, const struct ps_pull_section *sections, uint32_t n)
    MUST_CHECK;

/* Sections of the batch that computes, or of what is missing. */
struct read_ahead_keys {
    const struct ps_pull_section *sections;
    uint32_t n;
};

/* Splits the keys of section `i`, and returns what is to be read now: the section, with these keys and the rows of its
 * dst. A table that has several sections is left as a whole. */
struct ps_pull_section read_ahead_split(struct read_ahead *a, uint32_t i,
                                        struct read_ahead_keys current,
                                        struct read_ahead_keys missing);

/* Takes from a section of the pull what was read, and returns how many rows these are. */
uint32_t read_ahead_take(const struct read_ahead *a, struct ps_pull_section *section);

/* True if the keys of the push are of these sections: it changes rows of that batch alone. */
bool read_ahead_is_push_of(struct read_ahead_keys current, const struct ps_push_section *push);

#endif
