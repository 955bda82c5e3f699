/*
 * The texts of pages that take long to render (/stats, /metrics). A thread of its own renders them, so the thread that
 * asks goes on with its other clients. All who ask while a text is being made, or while it is fresh, share it.
 *
 *     asked --fresh--> the text, at once
 *       |
 *       +--else--> waits --one rendering for all that wait--> on_made()
 *
 * A text is fresh for 100 times what its rendering took, so the renderings need at most a hundredth of a core, and for
 * PAGE_CACHE_FRESH_MS at most.
 */
#ifndef SERVER_ADMIN_PAGE_CACHE_H
#define SERVER_ADMIN_PAGE_CACHE_H

#include "server/admin/stats.h"

#define PAGE_CACHE_FRESH_MS 1000u
#define PAGE_CACHE_N_MAX 4u
#define PAGE_CACHE_BYTES_MAX (64u << 20) /* of texts; page_cache_surplus() */

/* The text is malloc'ed and becomes the cache's; NULL: no memory. */
typedef char *(*page_cache_render)(void *owner, const struct node_report *node);

/* One rendering, read-only, as long as somebody holds it. */
struct page_text {
    char *text; /* owned */
    size_t n_bytes;
    uint64_t number; /* 1, 2, 3 ... in the order of renderings */
    uint32_t n_holders;
    struct page_text *older; /* of all that are held; owned by their holders */
    struct page_cache *cache;
};

/* The caller's, until on_made(). */
struct page_waiter {
    struct page_waiter *next;
    struct page_text *text; /* the waiter's from on_made() on; NULL: no memory, or the end */
    void (*on_made)(struct page_waiter *waiter); /* on another thread, or within the call */
};

struct page_cache;

/* `owner`: for the renders, borrowed. */
int page_cache_start(const page_cache_render *renders, uint32_t n_pages, void *owner,
                     stats_with_report with_report, void *node, struct page_cache **ret_cache,
                     struct err *err) MUST_CHECK;

/* Every waiter is called; who asks from now on gets NULL at once. NULL is fine. */
void page_cache_stop(struct page_cache *c);
/* After page_cache_stop(), and after the last text was released. NULL is fine. */
void page_cache_free(struct page_cache *c);

/* The text of page 0 .. n_pages - 1, for the caller to release, if it is fresh; else NULL. */
struct page_text *page_cache_find(struct page_cache *c, uint32_t page);

/* on_made() is called, once. */
void page_cache_wait(struct page_cache *c, uint32_t page, struct page_waiter *waiter);

/* `text` is a struct page_text; NULL is fine. Any thread. */
void page_text_release(void *text);

/* Slow readers hold old texts. Beyond PAGE_CACHE_BYTES_MAX, the number of the oldest one that is not its page's newest:
 * its readers have to go. 0: there is none. */
uint64_t page_cache_surplus(struct page_cache *c);

#endif
