/*
 * Blocks that one is done with, kept for the next ones by the same thread: the newest, still warm, goes out
 * first, and more than n_max are not kept. Between threads: common/spares.h.
 *
 *     pop (or make a new one) -> fill -> done with it: push -> pop ...
 */
#ifndef COMMON_PILE_H
#define COMMON_PILE_H

#include <stdbool.h>

#include "common/base.h"

/* Lies in the block. */
struct pile_link {
    struct pile_link *next; /* while it lies here */
};

struct pile {
    struct pile_link *first; /* owned; the newest */
    uint32_t n, n_max;
};

/* Takes the block. False: there are enough; it stays the caller's, to be freed. */
static inline bool pile_push(struct pile *p, struct pile_link *link) MUST_CHECK;

static inline bool pile_push(struct pile *p, struct pile_link *link)
{
    if (p->n >= p->n_max)
        return false;
    link->next = p->first;
    p->first = link;
    p->n++;
    return true;
}

/* The newest one, now the caller's; NULL: there is none. */
static inline struct pile_link *pile_pop(struct pile *p)
{
    struct pile_link *link = p->first;

    if (link) {
        p->first = link->next;
        p->n--;
    }
    return link;
}

#endif
