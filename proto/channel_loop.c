#include "proto/channel_loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

#define SMALLEST_LOG2 12u
#define SLEPT_NS UINT64_C(50000) /* no look at sockets that are ready takes so long */

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

/* What channels of low priority have of an iteration: less while the others could use more of it, too. */
static size_t low_shared_bytes(const struct channel_loop *channels)
{
    bool is_busy = channels->is_contended || channels->line.first ||
                   channels->used_bytes >= CHANNEL_SHARED_BYTES;

    return is_busy ? CHANNEL_LOW_BUSY_BYTES : CHANNEL_LOW_SHARED_BYTES;
}

static void on_check(uv_check_t *check)
{
    struct channel_loop *channels = check->data;
    size_t low_bytes = low_shared_bytes(channels);

    channels->turn++;
    channels->unpacked_before = channels->unpacked_bytes;
    channels->low_bytes -= channels->low_bytes < low_bytes ? channels->low_bytes : low_bytes;
    channels->used_bytes = 0;
    channels->is_contended = false;
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

/* May one more channel of this kind begin a turn? What it costs is not known yet. */
static bool may_begin(const struct channel_loop *channels, bool is_low)
{
    if (is_low)
        return channels->low_bytes < CHANNEL_LOW_BEGIN_BYTES;
    return !channels->n_low || channels->used_bytes < CHANNEL_SHARED_BEGIN_BYTES;
}

/* Whoever lines up meanwhile comes in the next iteration. (Where somebody else leaves the line
 * meanwhile, it may come now, and finds its turn used up.) */
static void go_through(struct channel_loop *channels, bool is_low)
{
    struct channel_loop_line *line = is_low ? &channels->low_line : &channels->line;

    for (size_t n = line->n; n && line->first && may_begin(channels, is_low); n--)
        go_first(channels, line);
}

static void on_idle(uv_idle_t *idle)
{
    struct channel_loop *channels = idle->data;

    go_through(channels, false);
    go_through(channels, true);
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
    uv_prepare_init(loop, &channels->prepare);
    uv_idle_init(loop, &channels->idle);
    uv_timer_init(loop, &channels->sweep);
    channels->check.data = channels->prepare.data = channels;
    channels->idle.data = channels->sweep.data = channels;
    uv_check_start(&channels->check, on_check);
    uv_unref((uv_handle_t *)&channels->check);
    uv_unref((uv_handle_t *)&channels->prepare);
    uv_unref((uv_handle_t *)&channels->sweep);
}

void channel_loop_close(struct channel_loop *channels)
{
    if (channels->closing)
        return;
    channels->closing = true;
    uv_close((uv_handle_t *)&channels->check, NULL);
    uv_close((uv_handle_t *)&channels->prepare, NULL);
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
    if (line == &channels->low_line)
        w->since_ns = uv_hrtime();
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

static void on_prepare(uv_prepare_t *prepare)
{
    struct channel_loop *channels = prepare->data;

    channels->polled_ns[1] = channels->polled_ns[0];
    channels->polled_ns[0] = uv_hrtime();
    channels->has_read = false;
}

/* Where the loop has slept, what woke it has not waited. */
void channel_loop_note_read(struct channel_loop *channels)
{
    uint64_t now_ns;

    if (channels->has_read)
        return;
    channels->has_read = true;
    now_ns = uv_hrtime();
    if (now_ns - channels->polled_ns[0] > SLEPT_NS)
        channels->polled_ns[0] = channels->polled_ns[1] = now_ns;
}

void channel_loop_add_low(struct channel_loop *channels)
{
    if (channels->n_low++ || channels->closing)
        return;
    channels->polled_ns[0] = channels->polled_ns[1] = uv_hrtime();
    channels->used_bytes = 0;
    uv_prepare_start(&channels->prepare, on_prepare);
}

void channel_loop_remove_low(struct channel_loop *channels)
{
    if (!--channels->n_low && !channels->closing)
        uv_prepare_stop(&channels->prepare);
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
    *w = (struct channel_loop_waiter){ .since_ns = w->since_ns };
    if (is_idle(channels) && !channels->closing)
        uv_idle_stop(&channels->idle);
}

/* ---- turns ---- */

static bool are_shared(const struct channel_turn *t, const struct channel_loop *channels)
{
    return t->is_low || channels->n_low;
}

static void charge(const struct channel_turn *t, struct channel_loop *channels, size_t cost)
{
    if (t->is_low)
        channels->low_bytes += cost;
    else
        channels->used_bytes += cost;
}

/* A new one may have begun. */
static void update(struct channel_turn *t, const struct channel_loop *channels)
{
    if (t->number == channels->turn)
        return;
    t->number = channels->turn;
    if (t->cost)
        t->last_cost = t->cost;
    t->n_bytes = t->cost = 0;
}

void channel_turn_use(struct channel_turn *t, struct channel_loop *channels, size_t n_bytes,
                      size_t cost)
{
    size_t paid;

    update(t, channels);
    paid = t->begun == t->number && t->paid > t->cost ? t->paid : t->cost;
    t->n_bytes += n_bytes;
    t->cost += cost;
    if (t->cost > paid && are_shared(t, channels))
        charge(t, channels, t->cost - paid);
}

/* What it will cost is what the last one did, or, the first time, what a peer of low priority may use. */
void channel_turn_begin(struct channel_turn *t, struct channel_loop *channels)
{
    size_t most = t->is_low ? CHANNEL_LOW_TURN_BYTES : CHANNEL_SHARED_BEGIN_BYTES;

    if (!are_shared(t, channels))
        return;
    update(t, channels);
    t->begun = t->number;
    t->paid = t->last_cost ? t->last_cost : CHANNEL_LOW_TURN_BYTES;
    if (t->paid < CHANNEL_TURN_LEAST_BYTES)
        t->paid = CHANNEL_TURN_LEAST_BYTES;
    if (t->paid > most)
        t->paid = most;
    charge(t, channels, t->paid);
}

bool channel_turn_has_begun(struct channel_turn *t, struct channel_loop *channels)
{
    if (!are_shared(t, channels) || t->begun == channels->turn)
        return true;
    if ((t->is_low ? &channels->low_line : &channels->line)->first ||
        !may_begin(channels, t->is_low))
        return false;
    channel_turn_begin(t, channels);
    return true;
}

bool channel_turn_goes_on(struct channel_turn *t, struct channel_loop *channels)
{
    update(t, channels);
    return t->n_bytes < (t->is_low ? CHANNEL_LOW_TURN_BYTES : CHANNEL_TURN_BYTES) &&
           channel_turn_has_begun(t, channels);
}

bool channel_turn_takes_frame(struct channel_turn *t, struct channel_loop *channels,
                              uint8_t frame_flags)
{
    if (!channel_turn_goes_on(t, channels))
        return false;
    if (t->is_low)
        return channels->low_bytes < CHANNEL_LOW_SHARED_BYTES;
    return channel_loop_has_time(channels) &&
           (!(frame_flags & FRAME_ZSTD) ||
            channels->unpacked_bytes - channels->unpacked_before < CHANNEL_UNPACK_SHARED_BYTES);
}
