/*
 * Buffers that one loop's channels use in turn, so that megabytes which come and go cost no
 * system call and no page fault each.
 *
 * Free buffers stand in lists by size, four to an octave (4, 5, 6, 7, 8, 10, 12 ... KiB); the one
 * given back last, still warm in the cache, is the first to be taken. A buffer is an ordinary
 * struct buf: whoever takes it may grow it, give it back, or free it with buf_deinit(). Any buf
 * may be given; but no more of a size are kept than were taken, so that buffers which others make
 * and only ever give do not pile up here.
 */
#ifndef PROTO_CHANNEL_POOL_H
#define PROTO_CHANNEL_POOL_H

#include <stdbool.h>

#include "common/buf.h"

#define CHANNEL_POOL_CLASSES 61u                   /* 4 KiB .. 128 MiB */
#define CHANNEL_POOL_KEEP_BYTES ((size_t)64 << 20) /* free buffers kept, at most */

struct channel_pool {
    struct {
        struct channel_pool_node *first; /* owned; the newest */
        uint32_t n, n_least;             /* kept; the fewest since the last sweep */
        uint32_t n_lent;                 /* taken and not given back */
    } classes[CHANNEL_POOL_CLASSES];
    size_t kept_bytes;
    uint64_t n_made; /* allocations, since the start */
};

/* A zeroed pool is a good one. */
void channel_pool_deinit(struct channel_pool *p);

/* *ret is set: empty, with room for n_bytes or more. -ENOMEM leaves it alone. */
int channel_pool_take(struct channel_pool *p, size_t n_bytes, struct buf *ret) MUST_CHECK;

/* Leaves *b empty. */
void channel_pool_give(struct channel_pool *p, struct buf *b);

/* Frees what nobody has needed since the last sweep. */
void channel_pool_sweep(struct channel_pool *p);

#endif
