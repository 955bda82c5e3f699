#include "worker/client/backlog.h"

#include <assert.h>

void backlog_add(struct backlog *b, struct parcel *push)
{
    assert(!push->seq || push->seq == b->last_seq + 1);
    push->seq = ++b->last_seq;
    push->next = NULL;
    if (b->last)
        b->last->next = push;
    else
        b->first = push;
    b->last = push;
}

struct parcel *backlog_ack(struct backlog *b)
{
    struct parcel *push = b->first;

    if (!push)
        return NULL;
    b->first = push->next;
    if (!b->first)
        b->last = NULL;
    b->last_acked = push->seq;
    push->next = NULL;
    return push;
}

void backlog_clear(struct backlog *b)
{
    struct parcel *push;

    while ((push = backlog_ack(b)))
        parcel_free(push);
    *b = (struct backlog){ 0 };
}
