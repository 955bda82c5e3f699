#include "server/requests/deferred.h"

#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

struct deferred_request {
    struct deferred_request *next;
    struct frame_header header;
    struct request request; /* head points into the held frame */
    uint64_t until_ms;
};

void deferred_init(struct deferred *q, uint64_t max_ms)
{
    *q = (struct deferred){ .max_ms = max_ms ? max_ms : DEFERRED_MS };
    q->last = &q->first;
}

static void remove_at(struct deferred *q, struct deferred_request **at)
{
    struct deferred_request *entry = *at;

    *at = entry->next;
    if (!*at)
        q->last = at;
    free(entry);
}

void deferred_deinit(struct deferred *q)
{
    while (q->first)
        remove_at(q, &q->first);
}

bool deferred_is_wanted(const struct request *r, int *status)
{
    if (*status != -EAGAIN)
        return false;
    if (r->has_waited)
        *status = -EBUSY;
    return !r->has_waited;
}

int deferred_add(struct deferred *q, const struct request *r, uint64_t loop_ms)
{
    struct deferred_request *entry = memory_try_alloc(sizeof *entry);

    if (!entry)
        return -ENOMEM;
    entry->until_ms = loop_ms + q->max_ms;
    entry->header = *r->header;
    entry->request = *r;
    entry->request.header = &entry->header;
    entry->request.body = NULL;
    entry->request.body_bytes = 0;
    connection_hold(r->connection);
    connection_drop_unpacked(r->connection);
    *q->last = entry;
    q->last = &entry->next;
    return 0;
}

const struct request *deferred_first(const struct deferred *q)
{
    return q->first ? &q->first->request : NULL;
}

bool deferred_is_over(const struct deferred *q, uint64_t loop_ms)
{
    return q->first && loop_ms >= q->first->until_ms;
}

void deferred_leave(struct deferred *q)
{
    connection_release(q->first->request.connection);
    remove_at(q, &q->first);
}

void deferred_drop(struct deferred *q, const struct connection *c)
{
    struct deferred_request **at = &q->first;

    while (*at) {
        if ((*at)->request.connection == c)
            remove_at(q, at);
        else
            at = &(*at)->next;
    }
}
