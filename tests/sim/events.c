#include "tests/sim/events.h"

#include <assert.h>
#include <stdlib.h>

void events_deinit(struct events *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->heap[i].data);
    free(e->heap);
    *e = (struct events){ 0 };
}

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void swap(struct event *a, struct event *b)
{
    const struct event was = *a;

    *a = *b;
    *b = was;
}

void events_in(struct events *e, uint64_t delay_us, event_fn run, void *owner, uint64_t number,
               void *data)
{
    size_t i = e->n++;

    if (e->n > e->cap) {
        e->cap = e->cap ? 2 * e->cap : 256;
        e->heap = realloc(e->heap, e->cap * sizeof *e->heap);
        assert(e->heap);
    }
    e->heap[i] = (struct event){ e->now_us + delay_us, e->n_asked++, number, run, owner, data };
    for (; i && is_before(&e->heap[i], &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&e->heap[i], &e->heap[(i - 1) / 2]);
}

static void sink(struct events *e)
{
    size_t i = 0;

    for (;;) {
        size_t least = i;

        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < e->n; child++)
            if (is_before(&e->heap[child], &e->heap[least]))
                least = child;
        if (least == i)
            return;
        swap(&e->heap[i], &e->heap[least]);
        i = least;
    }
}

bool events_run_next(struct events *e)
{
    struct event next;

    if (!e->n)
        return false;
    next = e->heap[0];
    e->heap[0] = e->heap[--e->n];
    sink(e);
    e->now_us = next.at_us;
    e->n_run++;
    next.run(next.owner, next.number, next.data);
    free(next.data);
    return true;
}
