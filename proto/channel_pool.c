#include "proto/channel_pool.h"

#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"

#define SMALLEST_LOG2 12u

/* Lies in the free buffer itself. */
struct channel_pool_node {
    struct channel_pool_node *next;
    size_t cap_bytes;
};

static size_t class_bytes(uint32_t class)
{
    return (size_t)(4 + class % 4) << (SMALLEST_LOG2 - 2 + class / 4);
}

/* The largest class that n_bytes fill; CHANNEL_POOL_CLASSES for none. */
static uint32_t class_below(size_t n_bytes)
{
    uint32_t log2;

    if (n_bytes < class_bytes(0) || n_bytes > class_bytes(CHANNEL_POOL_CLASSES - 1))
        return CHANNEL_POOL_CLASSES;
    log2 = 63u - (uint32_t)__builtin_clzll(n_bytes);
    return 4 * (log2 - SMALLEST_LOG2) + ((n_bytes >> (log2 - 2)) & 3);
}

/* The smallest class that holds n_bytes; CHANNEL_POOL_CLASSES for none. */
static uint32_t class_above(size_t n_bytes)
{
    uint32_t class;

    if (n_bytes <= class_bytes(0))
        return 0;
    class = class_below(n_bytes);
    if (class < CHANNEL_POOL_CLASSES && class_bytes(class) < n_bytes)
        class ++;
    return class;
}

static void push(struct channel_pool *p, uint32_t class, struct buf *b)
{
    struct channel_pool_node *node = (void *)b->bytes;

    *node = (struct channel_pool_node){ p->classes[class].first, b->cap_bytes };
    p->classes[class].first = node;
    p->classes[class].n++;
    p->kept_bytes += b->cap_bytes;
    mem_hide(node + 1, b->cap_bytes - sizeof *node);
}

static struct buf pop(struct channel_pool *p, uint32_t class)
{
    struct channel_pool_node *node = p->classes[class].first;
    struct buf b = { .bytes = (uint8_t *)node, .cap_bytes = node->cap_bytes };

    mem_show(node + 1, b.cap_bytes - sizeof *node);
    p->classes[class].first = node->next;
    p->classes[class].n--;
    p->kept_bytes -= b.cap_bytes;
    return b;
}

void channel_pool_deinit(struct channel_pool *p)
{
    for (uint32_t class = 0; class < CHANNEL_POOL_CLASSES; class ++) {
        while (p->classes[class].n) {
            struct buf b = pop(p, class);

            buf_deinit(&b);
        }
    }
}

int channel_pool_take(struct channel_pool *p, size_t n_bytes, struct buf *ret)
{
    uint32_t least = class_above(n_bytes), class;
    size_t cap_bytes = least < CHANNEL_POOL_CLASSES ? class_bytes(least) : n_bytes;
    uint8_t *bytes;

    /* Up to twice the size: a buffer that is at hand is better than one with cold pages. */
    for (class = least; class < CHANNEL_POOL_CLASSES && class < least + 4; class ++) {
        if (!p->classes[class].n)
            continue;
        *ret = pop(p, class);
        p->classes[class].n_lent++;
        if (p->classes[class].n < p->classes[class].n_least)
            p->classes[class].n_least = p->classes[class].n;
        return 0;
    }
    bytes = mem_try_large(cap_bytes);
    if (!bytes)
        return -ENOMEM;
    p->n_made++;
    if (least < CHANNEL_POOL_CLASSES)
        p->classes[least].n_lent++;
    *ret = (struct buf){ .bytes = bytes, .cap_bytes = cap_bytes };
    return 0;
}

void channel_pool_give(struct channel_pool *p, struct buf *b)
{
    uint32_t class = class_below(b->cap_bytes);

    bool is_lent = class < CHANNEL_POOL_CLASSES && p->classes[class].n_lent;

    if (is_lent)
        p->classes[class].n_lent--;
    if (is_lent && b->cap_bytes <= CHANNEL_POOL_KEEP_BYTES &&
        p->kept_bytes <= CHANNEL_POOL_KEEP_BYTES - b->cap_bytes) {
        push(p, class, b);
        *b = (struct buf){ 0 };
    } else {
        buf_deinit(b);
    }
}

void channel_pool_sweep(struct channel_pool *p)
{
    for (uint32_t class = 0; class < CHANNEL_POOL_CLASSES; class ++) {
        for (; p->classes[class].n_least; p->classes[class].n_least--) {
            struct buf b = pop(p, class);

            buf_deinit(&b);
        }
        p->classes[class].n_least = p->classes[class].n;
    }
}
