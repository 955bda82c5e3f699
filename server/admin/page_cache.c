#include "server/admin/page_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"

#define FRESH_TIMES 100u /* what the rendering took */

struct page {
    page_cache_render render;
    struct page_text *newest; /* held; NULL: none */
    uint64_t fresh_until_ns;
    struct page_waiter *waiters; /* borrowed */
};

struct page_cache {
    uv_mutex_t lock;
    uv_cond_t asked;
    uv_thread_t thread;
    stats_with_report with_report;
    void *node, *owner; /* borrowed */
    struct page pages[PAGE_CACHE_N_MAX];
    uint32_t n_pages;
    bool is_stopping;
    struct page_text *texts; /* all that are held, the newest first */
    uint64_t n_made, n_bytes;
};

/* --- texts: under the lock --- */

static struct page_text *hold(struct page_text *text)
{
    if (text)
        text->n_holders++;
    return text;
}

/* Takes `text`. NULL: no memory, or there was none. */
static struct page_text *add_text(struct page_cache *c, char *text)
{
    struct page_text *t = text ? memory_try_alloc(sizeof *t) : NULL;

    if (!t) {
        free(text);
        return NULL;
    }
    *t = (struct page_text){ .text = text,
                             .n_bytes = strlen(text),
                             .number = ++c->n_made,
                             .n_holders = 1,
                             .older = c->texts,
                             .cache = c };
    c->texts = t;
    c->n_bytes += t->n_bytes;
    return t;
}

static void remove_text(struct page_cache *c, struct page_text *text)
{
    struct page_text **at = &c->texts;

    while (*at != text)
        at = &(*at)->older;
    *at = text->older;
    c->n_bytes -= text->n_bytes;
}

void page_text_release(void *text)
{
    struct page_text *t = text;
    bool is_last;

    if (!t)
        return;
    uv_mutex_lock(&t->cache->lock);
    is_last = --t->n_holders == 0;
    if (is_last)
        remove_text(t->cache, t);
    uv_mutex_unlock(&t->cache->lock);
    if (!is_last)
        return;
    free(t->text);
    free(t);
}

static bool is_newest(const struct page_cache *c, const struct page_text *text)
{
    for (uint32_t i = 0; i < c->n_pages; i++)
        if (c->pages[i].newest == text)
            return true;
    return false;
}

uint64_t page_cache_surplus(struct page_cache *c)
{
    uint64_t number = 0;

    uv_mutex_lock(&c->lock);
    for (const struct page_text *t = c->texts; t && c->n_bytes > PAGE_CACHE_BYTES_MAX;
         t = t->older)
        number = is_newest(c, t) ? number : t->number;
    uv_mutex_unlock(&c->lock);
    return number;
}

/* --- the thread --- */

struct rendering {
    page_cache_render render;
    void *owner;
    char *text;
};

static void use_report(void *arg, const struct node_report *node)
{
    struct rendering *r = arg;

    r->text = r->render(r->owner, node);
}

/* Each gets the text, and its own time to read it. */
static void hand_out(struct page_waiter *waiters)
{
    for (struct page_waiter *w = waiters, *next; w; w = next) {
        next = w->next; /* on_made() ends our right to look at it */
        w->on_made(w);
    }
}

/* Called and left with the lock, which is open meanwhile. */
static void make(struct page_cache *c, struct page *page)
{
    struct rendering r = { .render = page->render, .owner = c->owner };
    struct page_text *old = page->newest;
    struct page_waiter *waiters;
    uint64_t begun_ns, took_ns, fresh_ns;

    uv_mutex_unlock(&c->lock);
    begun_ns = clock_mono_ns();
    c->with_report(c->node, use_report, &r);
    took_ns = clock_mono_ns() - begun_ns;
    fresh_ns = took_ns * FRESH_TIMES;
    if (fresh_ns > PAGE_CACHE_FRESH_MS * UINT64_C(1000000))
        fresh_ns = PAGE_CACHE_FRESH_MS * UINT64_C(1000000);
    uv_mutex_lock(&c->lock);
    page->newest = add_text(c, r.text);
    page->fresh_until_ns = begun_ns + took_ns + fresh_ns;
    waiters = page->waiters;
    page->waiters = NULL;
    for (struct page_waiter *w = waiters; w; w = w->next)
        w->text = hold(page->newest);
    uv_mutex_unlock(&c->lock);
    page_text_release(old);
    hand_out(waiters);
    uv_mutex_lock(&c->lock);
}

static struct page *find_asked(struct page_cache *c)
{
    for (uint32_t i = 0; i < c->n_pages; i++)
        if (c->pages[i].waiters)
            return &c->pages[i];
    return NULL;
}

static void run(void *arg)
{
    struct page_cache *c = arg;
    struct page *page;

    uv_mutex_lock(&c->lock);
    while (!c->is_stopping) {
        page = find_asked(c);
        if (page)
            make(c, page);
        else
            uv_cond_wait(&c->asked, &c->lock);
    }
    uv_mutex_unlock(&c->lock);
}

int page_cache_start(const page_cache_render *renders, uint32_t n_pages, void *owner,
                     stats_with_report with_report, void *node, struct page_cache **ret_cache,
                     struct err *err)
{
    struct page_cache *c = memory_alloc(sizeof *c);

    c->with_report = with_report;
    c->node = node;
    c->owner = owner;
    c->n_pages = n_pages;
    for (uint32_t i = 0; i < n_pages; i++)
        c->pages[i].render = renders[i];
    if (uv_mutex_init(&c->lock) || uv_cond_init(&c->asked))
        abort(); /* only without memory */
    if (uv_thread_create(&c->thread, run, c)) {
        c->is_stopping = true;
        page_cache_free(c);
        return err_set(err, -EAGAIN,
                       "cannot start the thread that renders pages (ulimit -v and -u)");
    }
    *ret_cache = c;
    return 0;
}

void page_cache_stop(struct page_cache *c)
{
    if (!c)
        return;
    uv_mutex_lock(&c->lock);
    c->is_stopping = true;
    uv_cond_signal(&c->asked);
    uv_mutex_unlock(&c->lock);
    uv_thread_join(&c->thread);
    for (uint32_t i = 0; i < c->n_pages; i++) {
        struct page_waiter *waiters;

        uv_mutex_lock(&c->lock);
        waiters = c->pages[i].waiters;
        c->pages[i].waiters = NULL;
        uv_mutex_unlock(&c->lock);
        hand_out(waiters);
    }
}

void page_cache_free(struct page_cache *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n_pages; i++)
        page_text_release(c->pages[i].newest);
    uv_cond_destroy(&c->asked);
    uv_mutex_destroy(&c->lock);
    free(c);
}

/* --- the thread that asks --- */

/* The newest one, held, if it is fresh. Under the lock. */
static struct page_text *find_fresh(struct page *page)
{
    return clock_mono_ns() < page->fresh_until_ns ? hold(page->newest) : NULL;
}

struct page_text *page_cache_find(struct page_cache *c, uint32_t page)
{
    struct page_text *text;

    uv_mutex_lock(&c->lock);
    text = find_fresh(&c->pages[page]);
    uv_mutex_unlock(&c->lock);
    return text;
}

void page_cache_wait(struct page_cache *c, uint32_t page, struct page_waiter *waiter)
{
    struct page *p = &c->pages[page];
    bool waits = false;

    uv_mutex_lock(&c->lock);
    waiter->text = find_fresh(p);
    if (!waiter->text && !c->is_stopping) {
        waiter->next = p->waiters;
        p->waiters = waiter;
        waits = true;
        uv_cond_signal(&c->asked);
    }
    uv_mutex_unlock(&c->lock);
    if (!waits)
        waiter->on_made(waiter);
}
