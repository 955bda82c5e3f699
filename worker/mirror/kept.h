/*
 * Pulled rows of one table, as floats, each with the min clock that it is good from (store_reuse.h).
 *
 * A row's place is its number in the table, which no other row has meanwhile; its version is the number of the answer
 * that brought it. So the same place and version are the same bits, also after a row has gone and another one has
 * its place.
 */
#ifndef WORKER_MIRROR_KEPT_H
#define WORKER_MIRROR_KEPT_H

#include "server/core/budget.h"
#include "server/core/table.h"

struct kept {
    struct table *rows; /* owned; NULL: nothing is kept; a row's version is its min clock */
    uint32_t dim, bound;
    uint64_t swept; /* at this clock */
};

/* bound 0: keeps nothing. `budget` is borrowed: what all tables together may hold; one that finds no
 * room for its first byte keeps nothing. -ENOMEM. */
int kept_init(struct kept *k, uint32_t dim, uint32_t bound, struct budget *budget) MUST_CHECK;
void kept_deinit(struct kept *k);

/* Rows that are asked for; of those that are read dst is filled, and versions and places unless they are NULL. */
struct kept_ask {
    uint32_t n;
    const uint64_t *keys;
    float *dst;         /* [n][dim] */
    uint64_t *versions; /* [n] */
    uint32_t *places;   /* [n] */
};

/* Copies the rows that are good at `clock`, and lowers *lowest to the lowest min clock of them. The others' numbers,
 * into ret_missing; returns how many. */
uint32_t kept_read(const struct kept *k, uint64_t clock, const struct kept_ask *ask,
                   uint32_t *ret_missing, uint64_t *lowest);

/* Where a row comes from: good as of min_clock, in an answer whose number no other one has. */
struct kept_origin {
    uint64_t min_clock, version;
};

/* Left out without memory, or where the budget has no room and no row that went has left its place: false. Else
 * *ret_place is its place. */
bool kept_put(struct kept *k, uint64_t key, struct kept_origin origin, const float *row,
              uint32_t *ret_place);

/* Now and then: what is too old goes. */
void kept_sweep(struct kept *k, uint64_t clock);

/* Everything goes. */
void kept_clear(struct kept *k);

#endif
