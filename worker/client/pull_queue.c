#include "worker/client/pull_queue.h"

#include <assert.h>

#include "worker/client/pull.h"

void pull_queue_add(struct pull_queue *q, struct request *pull)
{
    pull->next = NULL;
    if (q->last)
        q->last->next = pull;
    else
        q->first = pull;
    q->last = pull;
    if (!q->next)
        q->next = pull;
}

struct request *pull_queue_next(const struct pull_queue *q, uint32_t n_max, size_t max_bytes)
{
    if (!q->next || q->n_sent >= n_max ||
        (q->n_sent && q->sent_bytes + bytes_len(&q->next->bytes) > max_bytes))
        return NULL;
    return q->next;
}

void pull_queue_sent(struct pull_queue *q, uint64_t request_id)
{
    q->next->request_id = request_id;
    q->n_sent++;
    q->sent_bytes += bytes_len(&q->next->bytes);
    q->next = q->next->next;
}

struct request *pull_queue_find(const struct pull_queue *q, uint64_t request_id)
{
    for (struct request *r = q->first; r != q->next; r = r->next)
        if (r->request_id == request_id)
            return r;
    return NULL;
}

const struct request *pull_queue_oldest(const struct pull_queue *q)
{
    const struct request *r = q->first;

    while (r && r->is_dropped)
        r = r->next;
    return r;
}

void pull_queue_remove(struct pull_queue *q, struct request *pull)
{
    struct request *before = NULL, *r = q->first;
    bool is_sent = true;

    for (; r != pull; before = r, r = r->next)
        is_sent = is_sent && r != q->next;
    assert(r);
    if (is_sent && r != q->next) {
        q->n_sent--;
        q->sent_bytes -= bytes_len(&r->bytes);
    }
    if (r == q->next)
        q->next = r->next;
    if (r == q->last)
        q->last = before;
    if (before)
        before->next = r->next;
    else
        q->first = r->next;
    r->next = NULL;
}

void pull_queue_drop_ended(struct pull_queue *q)
{
    struct request *next;
    bool is_sent = true;

    for (struct request *r = q->first; r; r = next) {
        next = r->next;
        is_sent = is_sent && r != q->next;
        if (!pull_has_ended(r))
            continue;
        r->is_dropped = true;
        if (is_sent)
            continue;
        pull_queue_remove(q, r);
        request_free(r);
    }
}

void pull_queue_reset(struct pull_queue *q)
{
    struct request *next;

    for (struct request *r = q->first; r; r = next) {
        next = r->next;
        if (!r->is_dropped)
            continue;
        pull_queue_remove(q, r);
        request_free(r);
    }
    q->next = q->first;
    q->n_sent = 0;
    q->sent_bytes = 0;
}

void pull_queue_clear(struct pull_queue *q)
{
    struct request *next;

    for (struct request *r = q->first; r; r = next) {
        next = r->next;
        request_free(r);
    }
    *q = (struct pull_queue){ 0 };
}
