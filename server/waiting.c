#include "server/waiting.h"

#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"

struct waiting_request {
    struct waiting_request *next;
    struct frame_header header;
    struct request request; /* head points into the held frame */
    uint64_t until_ms;
};

void waiting_init(struct waiting *w, uint64_t max_ms)
{
    *w = (struct waiting){ .max_ms = max_ms ? max_ms : WAITING_MS };
    w->last = &w->first;
}

static void remove_at(struct waiting *w, struct waiting_request **at)
{
    struct waiting_request *gone = *at;

    *at = gone->next;
    if (!*at)
        w->last = at;
    free(gone);
}

void waiting_deinit(struct waiting *w)
{
    while (w->first)
        remove_at(w, &w->first);
}

bool waiting_is_wanted(const struct request *r, int *status)
{
    if (*status != -EAGAIN)
        return false;
    if (r->has_waited)
        *status = -EBUSY;
    return !r->has_waited;
}

int waiting_add(struct waiting *w, const struct request *r, uint64_t loop_ms)
{
    struct waiting_request *kept = mem_try_alloc(sizeof *kept);

    if (!kept)
        return -ENOMEM;
    kept->until_ms = loop_ms + w->max_ms;
    kept->header = *r->header;
    kept->request = *r;
    kept->request.header = &kept->header;
    kept->request.body = NULL;
    kept->request.body_bytes = 0;
    kept->request.unpacked = NULL;
    connection_hold(r->connection);
    *w->last = kept;
    w->last = &kept->next;
    return 0;
}

const struct request *waiting_first(const struct waiting *w)
{
    return w->first ? &w->first->request : NULL;
}

bool waiting_is_over(const struct waiting *w, uint64_t loop_ms)
{
    return w->first && loop_ms >= w->first->until_ms;
}

void waiting_leave(struct waiting *w)
{
    connection_release(w->first->request.connection);
    remove_at(w, &w->first);
}

void waiting_drop(struct waiting *w, const struct connection *c)
{
    struct waiting_request **at = &w->first;

    while (*at) {
        if ((*at)->request.connection == c)
            remove_at(w, at);
        else
            at = &(*at)->next;
    }
}

void waiting_each(const struct waiting *w,
                  void (*on_request)(void *owner, const struct request *r), void *owner)
{
    for (const struct waiting_request *at = w->first; at; at = at->next)
        on_request(owner, &at->request);
}
