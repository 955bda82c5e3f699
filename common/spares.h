/*
 * Memory that goes round between threads: what one is done with comes here, and the next who needs such
 * a block finds it here instead of asking the allocator for another. The newest, still warm, goes out first.
 *
 *     take (or make a new one) -> fill -> hand on -> done with it: give -> take ...
 *
 * So there are never more blocks than were in use at one time. Of those that lie here idle, after a rush, the first
 * n_min stay whatever they hold, and more as long as all together hold at most max_bytes; if that is 0, none more.
 *
 * Any thread may call these.
 */
#ifndef COMMON_SPARES_H
#define COMMON_SPARES_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base.h"

/* Lies in the block. */
struct spare {
    struct spare *next; /* while it lies here */
    size_t n_bytes;
};

struct spares {
    pthread_mutex_t lock;
    struct spare *first; /* owned; the newest */
    uint32_t n, n_min;
    size_t n_bytes, max_bytes;
};

void spares_init(struct spares *s, uint32_t n_min, size_t max_bytes);

/* Once spares_take() has found no more. A zeroed one is fine. */
void spares_deinit(struct spares *s);

/* The newest one, now the caller's; NULL: there is none. */
struct spare *spares_take(struct spares *s);

/* Takes a block that holds n_bytes. False: there are enough; it stays the caller's, to be freed. */
bool spares_give(struct spares *s, struct spare *spare, size_t n_bytes) MUST_CHECK;

#endif
