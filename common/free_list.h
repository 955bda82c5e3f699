/*
 * Blocks to use again: the newest, still warm, goes out first.
 *
 *     pop (or make a new one) -> fill -> done with it: push -> pop ...
 *
 * struct free_list is for one thread and bounded by a count. struct shared_free_list is for blocks that go round
 * between threads, and bounded by count and bytes; any thread may call its functions.
 */
#ifndef COMMON_FREE_LIST_H
#define COMMON_FREE_LIST_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base.h"

/* ---- one thread ---- */

/* Lies in the block. */
struct free_list_link {
    struct free_list_link *next; /* while it lies here */
};

struct free_list {
    struct free_list_link *first; /* owned; the newest */
    uint32_t n, n_max;
};

/* Takes the block. False: n_max are here; the block stays the caller's, to be freed. */
static inline bool free_list_push(struct free_list *l, struct free_list_link *link) MUST_CHECK;

static inline bool free_list_push(struct free_list *l, struct free_list_link *link)
{
    if (l->n >= l->n_max)
        return false;
    link->next = l->first;
    l->first = link;
    l->n++;
    return true;
}

/* The newest block, now the caller's, or NULL. */
static inline struct free_list_link *free_list_pop(struct free_list *l)
{
    struct free_list_link *link = l->first;

    if (link) {
        l->first = link->next;
        l->n--;
    }
    return link;
}

/* ---- between threads ---- */

/* Lies in the block. */
struct shared_free_link {
    struct shared_free_link *next; /* while it lies here */
    size_t n_bytes;
};

/* The first n_min blocks stay whatever they hold; more stay while all together hold at most max_bytes. */
struct shared_free_list {
    pthread_mutex_t lock;
    struct shared_free_link *first; /* owned; the newest */
    uint32_t n, n_min;
    size_t n_bytes, max_bytes; /* max_bytes 0: n_min and no more */
};

void shared_free_list_init(struct shared_free_list *l, uint32_t n_min, size_t max_bytes);

/* Once shared_free_list_pop() has returned NULL. A zeroed one is fine. */
void shared_free_list_deinit(struct shared_free_list *l);

/* The newest block, now the caller's, or NULL. */
struct shared_free_link *shared_free_list_pop(struct shared_free_list *l);

/* Takes a block that holds n_bytes. False: enough are here; the block stays the caller's, to be freed. */
bool shared_free_list_push(struct shared_free_list *l, struct shared_free_link *link,
                           size_t n_bytes) MUST_CHECK;

#endif
