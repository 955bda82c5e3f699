#include "worker/client/link_ask.h"

/* About what a frame has beside its body; one that has more grows its buffer. */
#define HEAD_BYTES 256u
#define SECTION_HEAD_BYTES 48u

void link_ask_hello(struct link *l)
{
    struct buf frame = { 0 };
    int status;

    link_state_set(l, LINK_GREETING);
    l->frame_max_bytes = FRAME_MAX_BYTES_DEFAULT;
    l->greet_id = ++l->last_request_id;
    status = message_write_hello(&frame, l->greet_id, &l->config.hello);
    link_state_send(l, "a greeting", status, &frame);
}

void link_ask_join(struct link *l)
{
    struct join join = l->config.join;
    struct buf frame = { 0 };
    int status;

    link_state_set(l, LINK_JOINING);
    join.last_acked = l->backlog.last_acked;
    /* A shard that knows nothing of this worker any more must take what is sent again. */
    if (l->backlog.first)
        join.clock = l->backlog.first->clock;
    else if (l->config.sent_seq > l->backlog.last_seq)
        join.clock = l->config.sent_clock;
    l->greet_id = ++l->last_request_id;
    status = message_write_join(&frame, l->greet_id, &join);
    link_state_send(l, "a join", status, &frame);
}

void link_ask_table(struct link *l, struct name *name)
{
    struct buf frame = { 0 };
    int status;

    name->request_id = ++l->last_request_id;
    status = message_write_table(&frame, name->request_id, &name->request);
    link_state_send(l, "a table", status, &frame);
}

/* A buffer for the parcel's frame, from those that come back from the socket. */
static int take_room(struct link *l, const struct parcel *p, struct buf *ret)
{
    size_t head_bytes = HEAD_BYTES + p->n_sections * SECTION_HEAD_BYTES;

    return channel_hub_take(l->hub, head_bytes + buf_len(&p->bytes), ret);
}

static struct message_zstd *zstd_of(const struct link *l)
{
    return l->config.compress ? &l->hub->zstd : NULL;
}

void link_ask_push(struct link *l, struct parcel *p)
{
    struct buf frame = { 0 };
    int status;

    if (l->phase != LINK_READY)
        return;
    p->request_id = ++l->last_request_id;
    status = take_room(l, p, &frame);
    if (!status)
        status = parcel_write_push(p, l->names.shard_ids, p->request_id, zstd_of(l), &frame);
    link_state_send(l, "a push", status, &frame);
}

void link_ask_pull(struct link *l)
{
    struct parcel *p = l->pull;
    uint64_t waited_ms = l->now_ms - p->asked_ms;
    uint32_t left_ms = waited_ms < p->deadline_ms ? p->deadline_ms - (uint32_t)waited_ms : 1;
    struct buf frame = { 0 };
    int status;

    if (l->phase != LINK_READY)
        return;
    p->request_id = ++l->last_request_id;
    status = take_room(l, p, &frame);
    if (!status)
        status = parcel_write_pull(p, l->names.shard_ids, p->request_id, zstd_of(l), left_ms,
                                   &frame);
    link_state_send(l, "a pull", status, &frame);
}

/* Pushes and pull, in the order in which they were asked for. */
uint64_t link_ask_all(struct link *l)
{
    struct parcel *p;
    bool asked = !l->pull;
    uint64_t n_resent = 0;

    for (p = l->backlog.first; p; p = p->next) {
        if (!asked && p->seq > l->pull->after_seq) {
            link_ask_pull(l);
            asked = true;
        }
        n_resent += p->request_id != 0;
        link_ask_push(l, p);
    }
    if (!asked)
        link_ask_pull(l);
    return n_resent;
}

void link_ask_beat(struct link *l)
{
    struct buf frame = { 0 };
    int status;

    l->beat_id = ++l->last_request_id;
    l->beat_sent_ms = l->now_ms;
    l->beat_due_ms = l->now_ms + l->lease_ms / 3;
    status = message_write_beat(&frame, l->beat_id, l->config.join.clock);
    link_state_send(l, "a heartbeat", status, &frame);
}

void link_ask_leave(struct link *l)
{
    struct buf frame = { 0 };
    int status;

    link_state_set(l, LINK_LEAVING);
    l->greet_id = ++l->last_request_id;
    status = message_write_leave(&frame, l->greet_id, l->config.join.clock);
    link_state_send(l, "a farewell", status, &frame);
}
