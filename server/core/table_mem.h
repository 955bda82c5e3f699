/*
 * Memory of a table, for table*.c alone: taken from a budget first and given back to it last, so
 * that a budget never says less than what is held.
 */
#ifndef SERVER_CORE_TABLE_MEM_H
#define SERVER_CORE_TABLE_MEM_H

#include <errno.h>

#include "common/mem.h"
#include "common/pages.h"
#include "server/core/budget.h"

/* What a mapping of n_bytes takes. */
static inline uint64_t table_mem_whole_pages(uint64_t n_bytes)
{
    return (n_bytes + 4095) & ~UINT64_C(4095);
}

/* Zeroed pages. PS_EBUDGET or -ENOMEM with *ret_pages untouched. */
MUST_CHECK static inline int table_mem_map(struct budget *b, size_t n_bytes, void **ret_pages)
{
    int status = budget_take(b, table_mem_whole_pages(n_bytes));
    void *pages;

    if (status)
        return status;
    pages = pages_alloc(n_bytes);
    if (!pages) {
        budget_give(b, table_mem_whole_pages(n_bytes));
        return -ENOMEM;
    }
    *ret_pages = pages;
    return 0;
}

static inline void table_mem_unmap(struct budget *b, void *pages, size_t n_bytes)
{
    pages_free(pages, n_bytes);
    budget_give(b, table_mem_whole_pages(n_bytes));
}

/* The block, which may be NULL and holds old_bytes of the budget, now holds new_bytes, more than
 * those. PS_EBUDGET or -ENOMEM: all is as it was. */
MUST_CHECK static inline int table_mem_grow(struct budget *b, void **block, size_t old_bytes,
                                            size_t new_bytes)
{
    int status = budget_take(b, new_bytes - old_bytes);
    void *grown;

    if (status)
        return status;
    grown = mem_try_realloc(*block, new_bytes);
    if (!grown) {
        budget_give(b, new_bytes - old_bytes);
        return -ENOMEM;
    }
    *block = grown;
    return 0;
}

#endif
