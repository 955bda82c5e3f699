#include "proto/channel_hub.h"

#include <assert.h>
#include <stdlib.h>

static void on_check(uv_check_t *check)
{
    struct channel_hub *hub = check->data;

    hub->turn++;
}

/* Whoever lines up meanwhile comes in the next iteration. (Where somebody else leaves the line
 * meanwhile, it may come now, and finds its turn used up.) */
static void on_idle(uv_idle_t *idle)
{
    struct channel_hub *hub = idle->data;
    void (*go)(struct channel_hub_waiter *);
    struct channel_hub_waiter *w;

    for (size_t n = hub->n_waiting; n && hub->first; n--) {
        w = hub->first;
        go = w->go;
        channel_hub_leave_line(hub, w);
        go(w);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct channel_hub *hub = timer->data;

    channel_pool_sweep(&hub->pool);
    if (!hub->pool.kept_bytes)
        uv_timer_stop(timer);
}

void channel_hub_init(struct channel_hub *hub, uv_loop_t *loop)
{
    *hub = (struct channel_hub){ .loop = loop, .turn = 1 };
    uv_check_init(loop, &hub->check);
    uv_idle_init(loop, &hub->idle);
    uv_timer_init(loop, &hub->sweep);
    hub->check.data = hub->idle.data = hub->sweep.data = hub;
    uv_check_start(&hub->check, on_check);
    uv_unref((uv_handle_t *)&hub->check);
    uv_unref((uv_handle_t *)&hub->sweep);
}

void channel_hub_close(struct channel_hub *hub)
{
    if (hub->closing)
        return;
    hub->closing = true;
    uv_close((uv_handle_t *)&hub->check, NULL);
    uv_close((uv_handle_t *)&hub->idle, NULL);
    uv_close((uv_handle_t *)&hub->sweep, NULL);
}

void channel_hub_deinit(struct channel_hub *hub)
{
    assert(!hub->n_waiting);
    channel_pool_deinit(&hub->pool);
    message_zstd_deinit(&hub->zstd);
    while (hub->spare) {
        struct channel_hub_spare *next = hub->spare->next;

        free(hub->spare);
        hub->spare = next;
    }
}

int channel_hub_take(struct channel_hub *hub, size_t n_bytes, struct buf *ret)
{
    return channel_pool_take(&hub->pool, n_bytes, ret);
}

void channel_hub_give(struct channel_hub *hub, struct buf *b)
{
    channel_pool_give(&hub->pool, b);
    if (hub->pool.kept_bytes && !hub->closing && !uv_is_active((uv_handle_t *)&hub->sweep))
        uv_timer_start(&hub->sweep, on_sweep, CHANNEL_HUB_SWEEP_MS, CHANNEL_HUB_SWEEP_MS);
}

void channel_hub_line_up(struct channel_hub *hub, struct channel_hub_waiter *w,
                         void (*go)(struct channel_hub_waiter *w))
{
    if (w->go)
        return;
    *w = (struct channel_hub_waiter){ .go = go, .prev = hub->last };
    if (hub->last)
        hub->last->next = w;
    else
        hub->first = w;
    hub->last = w;
    if (!hub->n_waiting++ && !hub->closing)
        uv_idle_start(&hub->idle, on_idle);
}

void channel_hub_leave_line(struct channel_hub *hub, struct channel_hub_waiter *w)
{
    if (!w->go)
        return;
    if (w->prev)
        w->prev->next = w->next;
    else
        hub->first = w->next;
    if (w->next)
        w->next->prev = w->prev;
    else
        hub->last = w->prev;
    *w = (struct channel_hub_waiter){ 0 };
    if (!--hub->n_waiting && !hub->closing)
        uv_idle_stop(&hub->idle);
}
