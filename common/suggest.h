/*
 * "Did you mean ...?": of several names, the one that a mistyped word was most likely meant to
 * be.
 */
#ifndef COMMON_SUGGEST_H
#define COMMON_SUGGEST_H

#include "common/base.h"

struct suggest {
    const char *word; /* borrowed: the unknown word */
    const char *name; /* borrowed: the best so far; NULL while none is near enough */
    unsigned n_edits; /* between the two */
};

void suggest_init(struct suggest *n, const char *word);

/* Takes `name` if it is nearer than all before, and near enough: an edit for every three
 * characters. */
void suggest_offer(struct suggest *n, const char *name);

#endif
