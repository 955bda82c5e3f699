/*
 * Things of one size, by number, that never move: a table's rows, and the segments of its index. For
 * table.c and hash_index.c alone.
 *
 *     slab 0: 2^first_shift things | slab 1: as many | slab 2: as many as both | ...
 *     until a slab has 2^last_shift things; then all do
 *
 * Numbers come in order. A slab of 2 MiB or more is mapped whole but costs only what has been
 * used of it, so it is taken from the budget a huge page at a time.
 */
#ifndef SERVER_CORE_SLAB_H
#define SERVER_CORE_SLAB_H

#include <errno.h>
#include <stdbool.h>

#include "common/memory.h"
#include "server/core/memory_budget.h"

struct slab {
    uint8_t **slabs; /* owned, and each slab in it */
    uint32_t n_slabs, slabs_cap;
    uint32_t first_shift, last_shift;
    size_t thing_bytes;
    uint64_t n_things;           /* numbers given out */
    uint64_t n_ahead;            /* below this the pages have been named by slab_ahead() */
    struct memory_budget budget; /* used: the bytes of all slabs */
};

/* In the caller's memory; holds nothing yet. The first slab has first_bytes or less, but one
 * thing at least. `parent` is borrowed for its life. */
void slab_init(struct slab *s, size_t thing_bytes, size_t first_bytes,
               struct memory_budget *parent);

/* Gives all back. A zeroed struct is fine. */
void slab_deinit(struct slab *s);

/* *ret_number: that of a new thing, zeroed. PS_EBUDGET or -ENOMEM: there is none. */
int slab_next(struct slab *s, uint64_t *ret_number) MUST_CHECK;

/* As table_ahead(). */
bool slab_ahead(struct slab *s, uint64_t n_things, void **ret_pages, size_t *ret_bytes);

/* The slab of thing i, and its place there. */
static inline uint64_t slab_of(const struct slab *s, uint64_t i, uint64_t *ret_at)
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

static inline void *slab_at(const struct slab *s, uint64_t i)
{
    uint64_t at;
    uint64_t slab = slab_of(s, i, &at);

    return s->slabs[slab] + at * s->thing_bytes;
}

/* --- memory taken from a budget first and given back to it last, so that a budget never says less than is held --- */

/* The bytes that a mapping of n_bytes takes. */
static inline uint64_t slab_whole_pages(uint64_t n_bytes)
{
    return (n_bytes + 4095) & ~UINT64_C(4095);
}

/* Zeroed pages. PS_EBUDGET or -ENOMEM with *ret_pages untouched. */
MUST_CHECK static inline int slab_map(struct memory_budget *b, size_t n_bytes, void **ret_pages)
{
    int status = memory_budget_acquire(b, slab_whole_pages(n_bytes));
    void *pages;

    if (status)
        return status;
    pages = memory_map(n_bytes);
    if (!pages) {
        memory_budget_release(b, slab_whole_pages(n_bytes));
        return -ENOMEM;
    }
    *ret_pages = pages;
    return 0;
}

static inline void slab_unmap(struct memory_budget *b, void *pages, size_t n_bytes)
{
    memory_unmap(pages, n_bytes);
    memory_budget_release(b, slab_whole_pages(n_bytes));
}

/* The block, which may be NULL and holds old_bytes of the budget, now holds new_bytes, more than
 * those. PS_EBUDGET or -ENOMEM: all is as it was. */
MUST_CHECK static inline int slab_grow_block(struct memory_budget *b, void **block,
                                             size_t old_bytes, size_t new_bytes)
{
    int status = memory_budget_acquire(b, new_bytes - old_bytes);
    void *grown;

    if (status)
        return status;
    grown = memory_try_realloc(*block, new_bytes);
    if (!grown) {
        memory_budget_release(b, new_bytes - old_bytes);
        return -ENOMEM;
    }
    *block = grown;
    return 0;
}

#endif
