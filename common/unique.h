/*
 * The different keys among many: ascending, each once, and where each of the many is in them. It is what a pull needs,
 * whose keys ascend, for a batch of ids that repeat.
 *
 *     keys      7 3 7 9 3          n
 *     unique    3 7 9              *ret_n_unique
 *     inverse   1 0 1 2 0          n: unique[inverse[i]] == keys[i]
 *
 * Any keys, in a time that grows as n does: a hash index numbers those that are different, which a radix sort puts
 * in order. Keys that defeat the hash are sorted all.
 */
#ifndef COMMON_UNIQUE_H
#define COMMON_UNIQUE_H

#include "common/base.h"

#define UNIQUE_KEYS_MAX (UINT32_C(1) << 30)

/* Working memory, used again by the next call: for one thread at a time. Starts as zeros. */
struct unique {
    void *scratch; /* owned */
    size_t scratch_bytes;
};

/* NULL is fine. */
void unique_deinit(struct unique *u);

/* `unique` has space for n keys, and may be `keys`. `inverse` has space for n, or is NULL. -ENOMEM: nothing was
 * written; also for more than UNIQUE_KEYS_MAX keys. */
int unique_find(struct unique *u, const uint64_t *keys, size_t n, uint64_t *unique,
                int64_t *inverse, size_t *ret_n_unique) MUST_CHECK;

/* The same by sorting all keys, and nothing else: what unique_find() falls back to. */
int unique_sort(struct unique *u, const uint64_t *keys, size_t n, uint64_t *unique,
                int64_t *inverse, size_t *ret_n_unique) MUST_CHECK;

#endif
