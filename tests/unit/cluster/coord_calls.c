#include "tests/unit/cluster/coord_calls.h"

#include <stdio.h>
#include <string.h>

static void on_late(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer; /* the condition is checked again */
}

static bool is_set(const void *arg)
{
    return *(const bool *)arg;
}

/* Fails after timeout_ms. */
static void run_until(uv_loop_t *loop, bool (*holds)(const void *arg), const void *arg,
                      uint32_t timeout_ms)
{
    uv_timer_t late, tick;
    bool is_late = false;

    uv_timer_init(loop, &late);
    uv_timer_init(loop, &tick);
    late.data = &is_late;
    uv_timer_start(&late, on_late, timeout_ms, 0);
    uv_timer_start(&tick, on_tick, 10, 10);
    while (!holds(arg) && !is_late)
        uv_run(loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&late, NULL);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(loop, UV_RUN_NOWAIT);
    if (!holds(arg))
        fail_msg("nothing has come within %u ms", timeout_ms);
}

void calls_run(uv_loop_t *loop, const bool *until, uint32_t timeout_ms)
{
    run_until(loop, is_set, until, timeout_ms);
}

void calls_on_done(void *arg, const struct err *err, const struct coord_result *result)
{
    struct calls_answer *a = arg;

    assert_false(a->is_there); /* once */
    *a = (struct calls_answer){ .is_there = true, .err = *err };
    assert_int_equal(err->status == 0, result != NULL);
    if (err->status && !err->text[0])
        fail_msg("a failure without a sentence");
    if (!result)
        return;
    a->result = *result;
    assert_true(result->n_items <= CALLS_ITEMS_MAX);
    for (uint32_t i = 0; i < result->n_items; i++) {
        a->items[i] = result->items[i];
        a->items[i].key = strncpy(a->texts[i][0], result->items[i].key, 199);
        a->items[i].value = strncpy(a->texts[i][1], result->items[i].value, 199);
    }
    a->result.items = a->items;
}

static struct calls_answer last; /* of the call that runs */

static const struct calls_answer *finish(uv_loop_t *loop, uint32_t timeout_ms)
{
    assert_false(last.is_there); /* not from within the call */
    calls_run(loop, &last.is_there, timeout_ms + 2000);
    return &last;
}

const struct calls_answer *calls_get(uv_loop_t *loop, struct coord *c, const char *key,
                                     bool is_prefix, uint32_t timeout_ms)
{
    last.is_there = false;
    c->ops->get(c, key, is_prefix, timeout_ms, calls_on_done, &last);
    return finish(loop, timeout_ms);
}

const struct calls_answer *calls_put_if(uv_loop_t *loop, struct coord *c,
                                        const struct coord_write *writes, uint32_t n,
                                        uint32_t timeout_ms)
{
    last.is_there = false;
    c->ops->put_if(c, writes, n, timeout_ms, calls_on_done, &last);
    return finish(loop, timeout_ms);
}

const struct calls_answer *calls_put(uv_loop_t *loop, struct coord *c, const char *key,
                                     int64_t if_revision, const char *value)
{
    const struct coord_write write = {
        .change = COORD_PUT, .key = key, .if_revision = if_revision, .value = value
    };

    return calls_put_if(loop, c, &write, 1, 5000);
}

const struct calls_answer *calls_grant(uv_loop_t *loop, struct coord *c, uint32_t ttl_ms)
{
    last.is_there = false;
    c->ops->grant(c, ttl_ms, 5000, calls_on_done, &last);
    return finish(loop, 5000);
}

const struct calls_answer *calls_keep(uv_loop_t *loop, struct coord *c, int64_t lease)
{
    last.is_there = false;
    c->ops->keep(c, lease, 5000, calls_on_done, &last);
    return finish(loop, 5000);
}

const struct calls_answer *calls_revoke(uv_loop_t *loop, struct coord *c, int64_t lease)
{
    last.is_there = false;
    c->ops->revoke(c, lease, 5000, calls_on_done, &last);
    return finish(loop, 5000);
}

static uint32_t index_of(const struct calls_view *v, const char *key)
{
    uint32_t i = 0;

    while (i < v->n_items && strcmp(v->keys[i], key) != 0)
        i++;
    return i;
}

static void set_item(struct calls_view *v, const struct coord_item *item)
{
    const uint32_t i = index_of(v, item->key);

    assert_true(i < CALLS_ITEMS_MAX);
    v->n_items += i == v->n_items;
    snprintf(v->keys[i], sizeof v->keys[i], "%s", item->key);
    snprintf(v->values[i], sizeof v->values[i], "%s", item->value);
}

void calls_on_event(void *arg, const struct coord_event *event)
{
    struct calls_view *v = arg;
    uint32_t i;

    if (event->kind == COORD_AWAY) {
        v->n_away++;
        snprintf(v->away, sizeof v->away, "%s", event->err->text);
        return;
    }
    if (event->kind == COORD_BACK) {
        v->n_back++;
        return;
    }
    if (event->kind == COORD_ALL && event->err) {
        v->n_restored++;
        snprintf(v->restored, sizeof v->restored, "%s", event->err->text);
        v->revision = 0;
    }
    assert_true(event->revision >= v->revision);
    v->revision = event->revision;
    if (event->kind == COORD_ALL) {
        v->n_all++;
        v->n_items = 0;
        for (i = 0; i < event->n_items; i++)
            set_item(v, &event->items[i]);
        return;
    }
    v->n_changes++;
    if (event->kind == COORD_CHANGED) {
        set_item(v, &event->items[0]);
        return;
    }
    i = index_of(v, event->items[0].key);
    if (i < v->n_items) {
        v->n_items--;
        memmove(v->keys[i], v->keys[v->n_items], sizeof v->keys[i]);
        memmove(v->values[i], v->values[v->n_items], sizeof v->values[i]);
    }
}

const char *calls_value(const struct calls_view *v, const char *key)
{
    const uint32_t i = index_of(v, key);

    return i < v->n_items ? v->values[i] : NULL;
}

struct expected {
    const struct calls_view *v;
    const char *key, *value;
};

static bool has_value(const void *arg)
{
    const struct expected *e = arg;
    const char *value = calls_value(e->v, e->key);

    if (!e->v->n_all || !value || !e->value)
        return e->v->n_all && !value && !e->value;
    return strcmp(value, e->value) == 0;
}

void calls_await_value(uv_loop_t *loop, const struct calls_view *v, const char *key,
                       const char *value, uint32_t timeout_ms)
{
    const struct expected e = { v, key, value };

    run_until(loop, has_value, &e, timeout_ms);
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

void calls_close(uv_loop_t *loop, struct coord *c)
{
    bool is_closed = false;

    c->ops->close(c, on_closed, &is_closed);
    assert_false(is_closed);
    calls_run(loop, &is_closed, 5000);
}
