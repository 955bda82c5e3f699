/*
 * Things of one size, by number, that never move; for table*.c alone: a table's rows, and the
 * segments of its index.
 *
 *     slab 0: 2^first_shift things | slab 1: as many | slab 2: as many as both | ...
 *     until a slab has 2^last_shift things; then all do
 *
 * Numbers come in order. A slab of 2 MiB or more is mapped whole but costs only what has been
 * used of it, so it is taken from the budget a huge page at a time.
 */
#ifndef SERVER_CORE_TABLE_SLAB_H
#define SERVER_CORE_TABLE_SLAB_H

#include <stdbool.h>

#include "server/core/budget.h"

struct table_slabs {
    uint8_t **slabs; /* owned, and each slab in it */
    uint32_t n_slabs, slabs_cap;
    uint32_t first_shift, last_shift;
    size_t thing_bytes;
    uint64_t n_things;    /* numbers given out */
    uint64_t n_ahead;     /* below this the pages have been named by table_slab_ahead() */
    struct budget budget; /* used: what all this holds */
};

/* In the caller's memory; holds nothing yet. The first slab has first_bytes or less, but one
 * thing at least. `parent` is borrowed for its life. */
void table_slab_init(struct table_slabs *s, size_t thing_bytes, size_t first_bytes,
                     struct budget *parent);

/* Gives all back. A zeroed struct is fine. */
void table_slab_deinit(struct table_slabs *s);

/* *ret_number: that of a new thing, zeroed. PS_EBUDGET or -ENOMEM: there is none. */
int table_slab_next(struct table_slabs *s, uint64_t *ret_number) MUST_CHECK;

/* As table_ahead(). */
bool table_slab_ahead(struct table_slabs *s, uint64_t n_things, void **ret_pages,
                      size_t *ret_bytes);

/* Which slab thing i stands in, and where in it. */
static inline uint64_t table_slab_of(const struct table_slabs *s, uint64_t i, uint64_t *ret_at)
{
    uint64_t firsts;
    uint32_t bits;

    if (i >> s->last_shift) {
        *ret_at = i & ((UINT64_C(1) << s->last_shift) - 1);
        return s->last_shift - s->first_shift + (i >> s->last_shift);
    }
    firsts = i >> s->first_shift;
    if (!firsts) {
        *ret_at = i;
        return 0;
    }
    bits = 64u - (uint32_t)__builtin_clzll(firsts);
    *ret_at = i - (UINT64_C(1) << (bits - 1 + s->first_shift));
    return bits;
}

static inline void *table_slab_at(const struct table_slabs *s, uint64_t i)
{
    uint64_t at;
    uint64_t slab = table_slab_of(s, i, &at);

    return s->slabs[slab] + at * s->thing_bytes;
}

#endif
