/*
 * Pulled rows of one table, as floats, each with the min clock that it is good from (param_store_stale_cache.h).
 *
 * A row's place is its number in the table, which no other row has meanwhile; its version is the number of the answer
 * that brought it. So the same place and version are the same bits, also after a row has gone and another one has
 * its place.
 */
#ifndef WORKER_CACHE_STALE_ROWS_H
#define WORKER_CACHE_STALE_ROWS_H

#include "server/core/memory_budget.h"
#include "server/core/table.h"

struct stale_rows {
    struct table *rows; /* owned; NULL: nothing is kept; a row's version is its min clock */
    uint32_t dim, bound;
    uint64_t swept; /* at this clock */
};

/* bound 0: keeps nothing. `budget` is borrowed: the limit of all tables together; a table that finds no space for its
 * first byte keeps nothing. -ENOMEM. */
int stale_rows_init(struct stale_rows *k, uint32_t dim, uint32_t bound,
                    struct memory_budget *budget) MUST_CHECK;
void stale_rows_deinit(struct stale_rows *k);

/* Rows that are asked for; of those that are read dst is filled, and versions and places unless they are NULL. */
struct stale_rows_ask {
    uint32_t n;
    const uint64_t *keys;
    float *dst;         /* [n][dim] */
    uint64_t *versions; /* [n] */
    uint32_t *places;   /* [n] */
};

/* Copies the rows that are good at `clock`, and lowers *lowest to the lowest min clock of them. The others' numbers,
 * into ret_missing; returns how many. */
uint32_t stale_rows_read(const struct stale_rows *k, uint64_t clock,
                         const struct stale_rows_ask *ask, uint32_t *ret_missing,
                         uint64_t *lowest);

/* The origin of a row: valid as of min_clock, from the answer with this unique number. */
struct stale_rows_origin {
    uint64_t min_clock, version;
};

/* Left out without memory, or where the budget has no space and no row that went has left its place: false. Else
 * *ret_place is its place. */
bool stale_rows_put(struct stale_rows *k, uint64_t key, struct stale_rows_origin origin,
                    const float *row, uint32_t *ret_place);

/* Removes rows that are too old. To be called at intervals. */
void stale_rows_sweep(struct stale_rows *k, uint64_t clock);

/* Removes all rows. */
void stale_rows_clear(struct stale_rows *k);

#endif
