/*
 * Loops, timers, idle, check, async and signal handles on simulated time, as libuv 1.44 does them: timers, results, idle,
 * poll (async, signals, streams), check, closing.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/uv_state.h"

#define BUSY_US 20u /* the longest that a turn takes of a loop that has more to do */

/* --- handles --- */

struct handle *handle_new(uv_loop_t *loop, void *uv, uv_handle_type type)
{
    struct handle *h = calloc(1, sizeof *h);
    uv_handle_t *handle = uv;

    assert(h);
    *h = (struct handle){ .next = loop_of(loop)->handles,
                          .uv = uv,
                          .loop = loop_of(loop),
                          .is_ref = true,
                          .fd = -1 };
    loop_of(loop)->handles = h;
    handle->loop = loop;
    handle->type = type;
    handle->u.reserved[0] = h;
    return h;
}

void uv_unref(uv_handle_t *handle)
{
    handle_of(handle)->is_ref = false;
}

int uv_is_active(const uv_handle_t *handle)
{
    return handle_of(handle)->is_active;
}

int uv_is_closing(const uv_handle_t *handle)
{
    return handle_of(handle)->is_closing;
}

void uv_close(uv_handle_t *handle, uv_close_cb on_close)
{
    struct handle *h = handle_of(handle);

    assert(!h->is_closing);
    h->is_closing = true;
    h->is_active = false;
    h->on_close = on_close;
    h->loop->has_closing = true;
    if (handle->type == UV_TCP)
        stream_close(h);
}

void loop_wake(struct loop *l)
{
    if (l->fiber)
        fiber_wake(l->fiber);
}

void request_done(struct loop *l, struct request *r, int status)
{
    r->status = status;
    r->next = l->done;
    l->done = r;
    loop_wake(l);
}

/* --- timers --- */

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer)
{
    (void)handle_new(loop, timer, UV_TIMER);
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb on_timer, uint64_t timeout, uint64_t repeat)
{
    struct handle *h = handle_of(timer);

    if (h->is_closing || !on_timer)
        return UV_EINVAL;
    h->on_timer = on_timer;
    h->due_ms = h->loop->now_ms + timeout;
    h->repeat_ms = repeat;
    h->order = h->loop->n_timers++;
    h->is_active = true;
    return 0;
}

int uv_timer_stop(uv_timer_t *timer)
{
    handle_of(timer)->is_active = false;
    return 0;
}

int uv_timer_again(uv_timer_t *timer)
{
    struct handle *h = handle_of(timer);

    if (!h->on_timer)
        return UV_EINVAL;
    return h->repeat_ms ? uv_timer_start(timer, h->on_timer, h->repeat_ms, h->repeat_ms) : 0;
}

static struct handle *next_timer(const struct loop *l)
{
    struct handle *first = NULL;

    for (struct handle *h = l->handles; h; h = h->next)
        if (h->uv->type == UV_TIMER && h->is_active &&
            (!first || h->due_ms < first->due_ms ||
             (h->due_ms == first->due_ms && h->order < first->order)))
            first = h;
    return first;
}

static void run_timers(struct loop *l)
{
    const uint64_t before = l->n_timers;
    struct handle *h;

    while ((h = next_timer(l)) != NULL && h->due_ms <= l->now_ms) {
        if (h->order >= before && h->repeat_ms == 0)
            return; /* it was started by one of these */
        h->is_active = false;
        if (h->repeat_ms)
            uv_timer_start((uv_timer_t *)h->uv, h->on_timer, h->repeat_ms, h->repeat_ms);
        h->on_timer((uv_timer_t *)h->uv);
    }
}

/* --- idle, check, prepare, async, signals --- */

int uv_idle_init(uv_loop_t *loop, uv_idle_t *idle)
{
    (void)handle_new(loop, idle, UV_IDLE);
    return 0;
}

int uv_idle_start(uv_idle_t *idle, uv_idle_cb on_idle)
{
    struct handle *h = handle_of(idle);

    if (h->is_closing)
        return UV_EINVAL;
    h->is_active = true;
    h->on_idle = on_idle;
    return 0;
}

int uv_idle_stop(uv_idle_t *idle)
{
    handle_of(idle)->is_active = false;
    return 0;
}

int uv_check_init(uv_loop_t *loop, uv_check_t *check)
{
    (void)handle_new(loop, check, UV_CHECK);
    return 0;
}

int uv_check_start(uv_check_t *check, uv_check_cb on_check)
{
    handle_of(check)->is_active = true;
    handle_of(check)->on_check = on_check;
    return 0;
}

int uv_prepare_init(uv_loop_t *loop, uv_prepare_t *prepare)
{
    (void)handle_new(loop, prepare, UV_PREPARE);
    return 0;
}

int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb on_prepare)
{
    handle_of(prepare)->is_active = true;
    handle_of(prepare)->on_prepare = on_prepare;
    return 0;
}

int uv_prepare_stop(uv_prepare_t *prepare)
{
    handle_of(prepare)->is_active = false;
    return 0;
}

int uv_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb on_async)
{
    struct handle *h = handle_new(loop, async, UV_ASYNC);

    h->on_async = on_async;
    h->is_active = true;
    return 0;
}

int uv_async_send(uv_async_t *async)
{
    struct handle *h = handle_of(async);

    h->is_pending = true;
    loop_wake(h->loop);
    fiber_yield();
    return 0;
}

int uv_signal_init(uv_loop_t *loop, uv_signal_t *signal)
{
    (void)handle_new(loop, signal, UV_SIGNAL);
    return 0;
}

int uv_signal_start(uv_signal_t *signal, uv_signal_cb on_signal, int number)
{
    struct handle *h = handle_of(signal);

    h->on_signal = on_signal;
    h->signal_number = number;
    h->is_active = true;
    return 0;
}

bool process_signal(struct process *p, int number)
{
    bool is_caught = false;

    for (struct loop *l = p->loops; l; l = l->next)
        for (struct handle *h = l->handles; h; h = h->next)
            if (h->uv->type == UV_SIGNAL && h->is_active && h->signal_number == number) {
                h->is_pending = is_caught = true;
                loop_wake(l);
            }
    return is_caught;
}

/* --- a turn --- */

static bool is_ready(const struct handle *h)
{
    if (h->is_closing)
        return !h->is_closed;
    switch (h->uv->type) {
    case UV_IDLE:
        return h->is_active;
    case UV_TIMER:
        return h->is_active && h->due_ms <= machine_ms();
    case UV_ASYNC:
    case UV_SIGNAL:
        return h->is_pending;
    case UV_TCP:
        return stream_is_ready(h);
    default:
        return false;
    }
}

static bool has_work(const struct loop *l)
{
    if (l->done)
        return true;
    for (const struct handle *h = l->handles; h; h = h->next)
        if (is_ready(h))
            return true;
    return false;
}

static bool is_alive(const struct loop *l)
{
    if (l->n_requests || l->has_closing)
        return true;
    for (const struct handle *h = l->handles; h; h = h->next)
        if (h->is_active && h->is_ref && !h->is_closing)
            return true;
    return false;
}

static void run_done(struct loop *l)
{
    struct request *r = l->done, *first = NULL, *next;

    l->done = NULL;
    for (; r; r = next) { /* the oldest first */
        next = r->next;
        r->next = first;
        first = r;
    }
    for (; first; first = next) {
        next = first->next;
        request_report(NULL, first);
    }
}

static void collect(struct loop *l)
{
    l->n_scratch = 0;
    for (struct handle *h = l->handles; h; h = h->next) {
        if (l->n_scratch == l->cap_scratch) {
            l->cap_scratch = l->cap_scratch ? 2 * l->cap_scratch : 32;
            l->scratch = realloc(l->scratch, l->cap_scratch * sizeof *l->scratch);
            assert(l->scratch);
        }
        l->scratch[l->n_scratch++] = h;
    }
}

static void poll_one(struct handle *h)
{
    if (h->is_closing)
        return;
    if (h->uv->type == UV_TCP)
        stream_poll(h);
    if (!h->is_pending)
        return;
    h->is_pending = false;
    if (h->uv->type == UV_ASYNC)
        h->on_async((uv_async_t *)h->uv);
    else if (h->uv->type == UV_SIGNAL)
        h->on_signal((uv_signal_t *)h->uv, h->signal_number);
}

/* Whatever is ready, in an order that nobody may count on. */
static void poll(struct loop *l)
{
    uint32_t n, first;

    collect(l);
    n = l->n_scratch;
    first = n ? (uint32_t)dice_roll(&machine.dice, n) : 0;
    for (uint32_t i = 0; i < n; i++)
        poll_one(l->scratch[(first + i) % n]);
}

static void run_all(struct loop *l, uv_handle_type type)
{
    collect(l);
    for (uint32_t i = 0; i < l->n_scratch; i++) {
        struct handle *h = l->scratch[i];

        if (h->uv->type != type || !h->is_active)
            continue;
        if (type == UV_IDLE)
            h->on_idle((uv_idle_t *)h->uv);
        else if (type == UV_PREPARE)
            h->on_prepare((uv_prepare_t *)h->uv);
        else
            h->on_check((uv_check_t *)h->uv);
    }
}

static void run_closing(struct loop *l)
{
    struct handle **at = &l->handles;

    if (!l->has_closing)
        return;
    run_done(l);
    collect(l);
    l->has_closing = false;
    for (uint32_t i = 0; i < l->n_scratch; i++)
        if (l->scratch[i]->is_closing) {
            l->scratch[i]->is_closed = true;
            if (l->scratch[i]->uv->type == UV_TCP)
                stream_destroy(l->scratch[i]);
        }
    for (uint32_t i = 0; i < l->n_scratch; i++) {
        struct handle *h = l->scratch[i];

        if (!h->is_closed || !h->uv)
            continue;
        if (h->on_close)
            h->on_close(h->uv);
        h->uv = NULL;
    }
    while (*at) {
        struct handle *h = *at;

        if (h->uv) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        free(h);
    }
}

static void wait_for_work(struct loop *l)
{
    const struct handle *timer = next_timer(l);
    uint64_t due_us = MACHINE_NEVER;

    if (timer)
        due_us = machine_us_until(l->process, timer->due_ms);
    if (has_work(l))
        fiber_sleep(dice_roll(&machine.dice, BUSY_US));
    else if (is_alive(l)) /* a turn may have ended the last of it */
        (void)fiber_wait(due_us);
}

int uv_run(uv_loop_t *loop, uv_run_mode mode)
{
    struct loop *l = loop_of(loop);

    assert(mode == UV_RUN_DEFAULT);
    l->fiber = machine.running;
    l->now_ms = machine_ms();
    while (is_alive(l)) {
        l->now_ms = machine_ms();
        run_timers(l);
        run_done(l);
        run_all(l, UV_IDLE);
        if (machine.on_turn)
            machine.on_turn(l->process);
        if (is_alive(l)) /* what has ended may have been the last */
            wait_for_work(l);
        l->now_ms = machine_ms();
        run_all(l, UV_PREPARE);
        poll(l);
        run_all(l, UV_CHECK);
        run_closing(l);
    }
    l->fiber = NULL;
    return 0;
}

/* --- loops --- */

int uv_loop_init(uv_loop_t *loop)
{
    struct loop *l = calloc(1, sizeof *l);

    assert(l && process_current());
    *l = (struct loop){ .next = process_current()->loops,
                        .uv = loop,
                        .process = process_current(),
                        .now_ms = machine_ms() };
    process_current()->loops = l;
    *loop = (uv_loop_t){ .internal_fields = l };
    return 0;
}

int uv_loop_close(uv_loop_t *loop)
{
    struct loop *l = loop_of(loop), **at = &l->process->loops;

    if (l->handles || l->n_requests)
        return UV_EBUSY;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    free(l->scratch);
    free(l);
    loop->internal_fields = NULL;
    return 0;
}

uint64_t uv_now(const uv_loop_t *loop)
{
    return loop_of(loop)->now_ms;
}

void uv_update_time(uv_loop_t *loop)
{
    loop_of(loop)->now_ms = machine_ms();
}

uint64_t uv_hrtime(void)
{
    return UINT64_C(1000000000) + machine_us_of(process_current()) * 1000;
}

/* For threads that sleep at a loop's sockets themselves, as callers of libpsd do: here nobody does. */
int uv_backend_fd(const uv_loop_t *loop)
{
    (void)loop;
    return -1;
}

int uv_backend_timeout(const uv_loop_t *loop)
{
    (void)loop;
    return -1;
}

/* --- the rest of the system --- */

uint64_t uv_get_free_memory(void)
{
    return UINT64_C(1) << 32;
}

uint64_t uv_get_constrained_memory(void)
{
    return 0;
}
