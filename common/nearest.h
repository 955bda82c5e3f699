/*
 * "Did you mean ...?": of several names, the one that a mistyped word was most likely meant to
 * be.
 */
#ifndef COMMON_NEAREST_H
#define COMMON_NEAREST_H

#include "common/base.h"

struct nearest {
    const char *word; /* borrowed: what was typed */
    const char *name; /* borrowed: the best so far; NULL while none is near enough */
    unsigned n_edits; /* between the two */
};

void nearest_init(struct nearest *n, const char *word);

/* Takes `name` if it is nearer than all before, and near enough: an edit for every three
 * characters. */
void nearest_offer(struct nearest *n, const char *name);

#endif
