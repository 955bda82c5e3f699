/*
 * A limit of bytes: of a table, within the limit of its shard. Code that needs memory reserves it here first, and
 * releases it when it frees it, so `used` is the real memory and not an estimate.
 */
#ifndef SERVER_CORE_MEMORY_BUDGET_H
#define SERVER_CORE_MEMORY_BUDGET_H

#include "common/base.h"
#include "common/status.h"

struct memory_budget {
    struct memory_budget *parent; /* borrowed; NULL: this is the whole */
    uint64_t used, max;           /* bytes; max 0: no limit of its own */
};

/* PS_EBUDGET and nothing taken if any level would be exceeded. */
static inline int memory_budget_acquire(struct memory_budget *b, uint64_t n_bytes)
{
    for (const struct memory_budget *at = b; at; at = at->parent)
        if (at->max && (at->used > at->max || n_bytes > at->max - at->used))
            return PS_EBUDGET;
    for (; b; b = b->parent)
        b->used += n_bytes;
    return 0;
}

static inline void memory_budget_release(struct memory_budget *b, uint64_t n_bytes)
{
    for (; b; b = b->parent)
        b->used -= n_bytes;
}

#endif
