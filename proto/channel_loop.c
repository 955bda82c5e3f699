#include "proto/channel_loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

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

static void push(struct channel_pool *p, uint32_t class, struct bytes *b)
{
    struct channel_pool_node *node = (void *)b->bytes;

    *node = (struct channel_pool_node){ p->classes[class].first, b->cap_bytes };
    p->classes[class].first = node;
    p->classes[class].n++;
    p->kept_bytes += b->cap_bytes;
    memory_hide(node + 1, b->cap_bytes - sizeof *node);
}

static struct bytes pop(struct channel_pool *p, uint32_t class)
{
    struct channel_pool_node *node = p->classes[class].first;
    struct bytes b = { .bytes = (uint8_t *)node, .cap_bytes = node->cap_bytes };

    memory_show(node + 1, b.cap_bytes - sizeof *node);
    p->classes[class].first = node->next;
    p->classes[class].n--;
    p->kept_bytes -= b.cap_bytes;
    return b;
}

void channel_pool_deinit(struct channel_pool *p)
{
    for (uint32_t class = 0; class < CHANNEL_POOL_CLASSES; class ++) {
        while (p->classes[class].n) {
            struct bytes b = pop(p, class);

            bytes_deinit(&b);
        }
    }
}

int channel_pool_acquire(struct channel_pool *p, size_t n_bytes, struct bytes *ret)
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
    bytes = memory_try_large(cap_bytes);
    if (!bytes)
        return -ENOMEM;
    p->n_made++;
    if (least < CHANNEL_POOL_CLASSES)
        p->classes[least].n_lent++;
    *ret = (struct bytes){ .bytes = bytes, .cap_bytes = cap_bytes };
    return 0;
}

static bool is_lent(const struct channel_pool *p, const struct bytes *b)
{
    uint32_t class = class_below(b->cap_bytes);

    return class < CHANNEL_POOL_CLASSES && p->classes[class].n_lent;
}

/* As if it had never been lent. */
static void uncount_lent(struct channel_pool *p, const struct bytes *b)
{
    if (is_lent(p, b))
        p->classes[class_below(b->cap_bytes)].n_lent--;
}

int channel_pool_grow(struct channel_pool *p, struct bytes *b, size_t cap_bytes)
{
    uint8_t *bytes = memory_try_realloc(b->bytes, cap_bytes);

    if (!bytes)
        return -ENOMEM;
    uncount_lent(p, b);
    p->n_made++;
    b->bytes = bytes;
    b->cap_bytes = cap_bytes;
    return 0;
}

/* Takes it, and leaves *b empty, if it is to be kept. */
static bool keep(struct channel_pool *p, struct bytes *b)
{
    bool was_lent = is_lent(p, b);

    uncount_lent(p, b);
    if (!was_lent || b->cap_bytes > CHANNEL_POOL_KEEP_BYTES ||
        p->kept_bytes > CHANNEL_POOL_KEEP_BYTES - b->cap_bytes)
        return false;
    push(p, class_below(b->cap_bytes), b);
    *b = (struct bytes){ 0 };
    return true;
}

void channel_pool_release(struct channel_pool *p, struct bytes *b)
{
    if (!keep(p, b))
        bytes_deinit(b);
}

void channel_pool_sweep(struct channel_pool *p)
{
    for (uint32_t class = 0; class < CHANNEL_POOL_CLASSES; class ++) {
        for (; p->classes[class].n_least; p->classes[class].n_least--) {
            struct bytes b = pop(p, class);

            bytes_deinit(&b);
        }
        p->classes[class].n_least = p->classes[class].n;
    }
}

/* ---- the loop ---- */

void channel_loop_share_memory(struct channel_loop *channels, struct channel_memory *memory,
                               void (*on_over)(void *owner), void *owner)
{
    channels->memory = memory;
    channels->on_over = on_over;
    channels->owner = owner;
}

static void publish(struct channel_loop *channels)
{
    atomic_fetch_add_explicit(&channels->memory->used_bytes,
                              channels->held_bytes - channels->published_bytes,
                              memory_order_relaxed);
    channels->published_bytes = channels->held_bytes;
}

void channel_loop_hold_bytes(struct channel_loop *channels, size_t before, size_t after)
{
    channels->held_bytes += after - before;
    if (channels->memory &&
        (channels->held_bytes - channels->published_bytes + CHANNEL_MEMORY_PUBLISH_BYTES >
         2 * CHANNEL_MEMORY_PUBLISH_BYTES))
        publish(channels);
}

bool channel_loop_is_over(const struct channel_loop *channels)
{
    const struct channel_memory *m = channels->memory;

    return m && channel_memory_used(m) > m->max_bytes &&
           channels->held_bytes > m->max_bytes / m->n_loops;
}

static void on_check(uv_check_t *check)
{
    struct channel_loop *channels = check->data;

    channels->turn++;
    channels->unpacked_before = channels->unpacked_bytes;
    channels->low_bytes -= channels->low_bytes < CHANNEL_LOW_SHARED_BYTES
                               ? channels->low_bytes
                               : CHANNEL_LOW_SHARED_BYTES;
    if (channel_loop_is_over(channels))
        channels->on_over(channels->owner);
}

static void go_first(struct channel_loop *channels, struct channel_loop_line *line)
{
    struct channel_loop_waiter *w = line->first;
    void (*go)(struct channel_loop_waiter *) = w->go;

    channel_loop_cancel(channels, w);
    go(w);
}

/* Frees the end of a large buffer, or what is left of it. Returns how many bytes. */
static size_t free_end(struct channel_loop *channels)
{
    struct channel_pool_node *node = channels->freed;
    size_t n_bytes = node->cap_bytes;

    if (n_bytes > 2 * CHANNEL_LOOP_FREE_BYTES) {
        n_bytes = CHANNEL_LOOP_FREE_BYTES;
        node->cap_bytes -= n_bytes;
        memory_drop((uint8_t *)node + node->cap_bytes, n_bytes);
    } else {
        channels->freed = node->next;
        free(node);
    }
    channels->freed_bytes -= n_bytes;
    return n_bytes;
}

/* Faster than peers fill new ones, and much less than all of it at once. */
static void free_some(struct channel_loop *channels)
{
    size_t n_bytes = channels->freed_bytes / CHANNEL_LOOP_FREE_SHARE, n = 0;

    if (n_bytes > CHANNEL_LOOP_FREE_MAX_BYTES)
        n_bytes = CHANNEL_LOOP_FREE_MAX_BYTES;
    do
        n += free_end(channels);
    while (n < n_bytes && channels->freed);
}

/* Is there anything to do without an event? */
static bool is_idle(const struct channel_loop *channels)
{
    return !channels->line.n && !channels->low_line.n && !channels->freed;
}

static void stay_awake(struct channel_loop *channels);

static void begin_freeing(struct channel_loop *channels, struct bytes *b)
{
    struct channel_pool_node *node = (void *)b->bytes;

    *node = (struct channel_pool_node){ channels->freed, b->cap_bytes };
    channels->freed = node;
    channels->freed_bytes += node->cap_bytes;
    *b = (struct bytes){ 0 };
    stay_awake(channels);
}

/* Whoever lines up meanwhile comes in the next iteration. (Where somebody else leaves the line
 * meanwhile, it may come now, and finds its turn used up.) */
static void on_idle(uv_idle_t *idle)
{
    struct channel_loop *channels = idle->data;

    for (size_t n = channels->line.n; n && channels->line.first; n--)
        go_first(channels, &channels->line);
    for (size_t n = channels->low_line.n; n && channels->low_line.first; n--) {
        if (channels->low_bytes >= CHANNEL_LOW_BEGIN_BYTES)
            break;
        go_first(channels, &channels->low_line);
    }
    if (channels->freed)
        free_some(channels);
    if (is_idle(channels) && !channels->closing)
        uv_idle_stop(idle);
}

static void stay_awake(struct channel_loop *channels)
{
    if (!channels->closing && !uv_is_active((uv_handle_t *)&channels->idle))
        uv_idle_start(&channels->idle, on_idle);
}

static void on_sweep(uv_timer_t *timer)
{
    struct channel_loop *channels = timer->data;

    channel_pool_sweep(&channels->pool);
    if (!channels->pool.kept_bytes)
        uv_timer_stop(timer);
}

void channel_loop_init(struct channel_loop *channels, uv_loop_t *loop)
{
    *channels = (struct channel_loop){ .loop = loop, .turn = 1 };
    uv_check_init(loop, &channels->check);
    uv_idle_init(loop, &channels->idle);
    uv_timer_init(loop, &channels->sweep);
    channels->check.data = channels->idle.data = channels->sweep.data = channels;
    uv_check_start(&channels->check, on_check);
    uv_unref((uv_handle_t *)&channels->check);
    uv_unref((uv_handle_t *)&channels->sweep);
}

void channel_loop_close(struct channel_loop *channels)
{
    if (channels->closing)
        return;
    channels->closing = true;
    uv_close((uv_handle_t *)&channels->check, NULL);
    uv_close((uv_handle_t *)&channels->idle, NULL);
    uv_close((uv_handle_t *)&channels->sweep, NULL);
}

void channel_loop_deinit(struct channel_loop *channels)
{
    assert(!channels->line.n && !channels->low_line.n);
    channel_pool_deinit(&channels->pool);
    while (channels->freed)
        free_some(channels);
    message_zstd_deinit(&channels->zstd);
    while (channels->pooled) {
        struct channel_loop_pooled *next = channels->pooled->next;

        free(channels->pooled);
        channels->pooled = next;
    }
}

int channel_loop_acquire(struct channel_loop *channels, size_t n_bytes, struct bytes *ret)
{
    return channel_pool_acquire(&channels->pool, n_bytes, ret);
}

int channel_loop_grow(struct channel_loop *channels, struct bytes *b, size_t cap_bytes)
{
    return channel_pool_grow(&channels->pool, b, cap_bytes);
}

void channel_loop_release(struct channel_loop *channels, struct bytes *b)
{
    bool has_grown = !is_lent(&channels->pool, b); /* its pages are small */

    if (!keep(&channels->pool, b)) {
        if (has_grown && b->cap_bytes > 2 * CHANNEL_LOOP_FREE_BYTES && !channels->closing)
            begin_freeing(channels, b);
        else
            bytes_deinit(b);
    }
    if (channels->pool.kept_bytes && !channels->closing &&
        !uv_is_active((uv_handle_t *)&channels->sweep))
        uv_timer_start(&channels->sweep, on_sweep, CHANNEL_LOOP_SWEEP_MS,
                       CHANNEL_LOOP_SWEEP_MS);
}

static void append(struct channel_loop *channels, struct channel_loop_line *line,
                   struct channel_loop_waiter *w, void (*go)(struct channel_loop_waiter *w))
{
    if (w->go)
        return;
    *w = (struct channel_loop_waiter){ .go = go, .prev = line->last, .line = line };
    if (line->last)
        line->last->next = w;
    else
        line->first = w;
    line->last = w;
    line->n++;
    stay_awake(channels);
}

void channel_loop_enqueue(struct channel_loop *channels, struct channel_loop_waiter *w,
                          void (*go)(struct channel_loop_waiter *w))
{
    append(channels, &channels->line, w, go);
}

void channel_loop_enqueue_low(struct channel_loop *channels, struct channel_loop_waiter *w,
                              void (*go)(struct channel_loop_waiter *w))
{
    append(channels, &channels->low_line, w, go);
}

bool channel_loop_has_low_turn(const struct channel_loop *channels)
{
    return !channels->low_line.first && channels->low_bytes < CHANNEL_LOW_BEGIN_BYTES;
}

void channel_loop_cancel(struct channel_loop *channels, struct channel_loop_waiter *w)
{
    struct channel_loop_line *line = w->line;

    if (!w->go)
        return;
    if (w->prev)
        w->prev->next = w->next;
    else
        line->first = w->next;
    if (w->next)
        w->next->prev = w->prev;
    else
        line->last = w->prev;
    line->n--;
    *w = (struct channel_loop_waiter){ 0 };
    if (is_idle(channels) && !channels->closing)
        uv_idle_stop(&channels->idle);
}
