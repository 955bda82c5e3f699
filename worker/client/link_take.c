#include "worker/client/link_take.h"

#include <inttypes.h>

#include "worker/client/link_ask.h"

#define FRAME_LIMIT_MAX (1u << 30)

/* Whoever takes connections and joins but never a push is not waited for without end. */
static bool has_patience(struct link *l)
{
    uint64_t waited_ms = l->now_ms - l->push_since_ms;

    l->push_told_ms = l->now_ms;
    if (l->backlog.first && l->push_again && waited_ms >= l->config.give_up_ms) {
        link_state_over(l, PS_EDEADLINE, "has not taken a push for %" PRIu64 " s: %s",
                        waited_ms / 1000, l->why);
        return false;
    }
    if (!l->push_again)
        l->push_since_ms = l->now_ms;
    l->push_again = l->backlog.first != NULL;
    return true;
}

void link_take_ready(struct link *l)
{
    bool is_return = l->was_ready && !l->rejoins;
    uint64_t n_resent;

    if (!has_patience(l))
        return;
    link_state_set(l, LINK_READY);
    l->was_ready = true;
    l->rejoins = false;
    l->next_notice_ms = 0;
    l->pull_told_ms = l->now_ms;
    l->beat_due_ms = l->now_ms + l->lease_ms / 3;
    l->events->ready(l->owner, l->config.shard, &l->joined);
    n_resent = link_ask_all(l);
    if (is_return) {
        link_state_notice(l, "is back; %" PRIu64 " push%s sent again", n_resent,
                          n_resent == 1 ? " was" : "es were");
        l->events->reconnected(l->owner, l->config.shard, n_resent);
    }
}

static void ask_tables(struct link *l)
{
    uint32_t i;

    link_state_set(l, LINK_NAMING);
    names_forget(&l->names);
    for (i = 0; i < l->names.n && l->phase == LINK_NAMING; i++)
        link_ask_table(l, &l->names.items[i]);
    if (!l->names.n)
        link_take_ready(l);
}

static int take_hello(struct link *l, const struct frame_header *h, const uint8_t *head)
{
    struct hello_reply r;
    int status = message_read_hello_reply(h, head, &r);

    if (status || l->phase != LINK_GREETING || h->request_id != l->greet_id)
        return status ? status : PS_EPROTO;
    if (r.status) {
        link_state_refuse(l, "the greeting", r.status, r.text);
        return 0;
    }
    if (r.map_id != l->config.hello.map_id) {
        link_state_over(l, PS_ECLUSTER,
                        "belongs to another cluster than the server that was asked first");
        return 0;
    }
    if (r.frame_max_bytes && r.frame_max_bytes <= FRAME_LIMIT_MAX) {
        l->frame_max_bytes = r.frame_max_bytes;
        dial_set_frame_max(l->dial, r.frame_max_bytes);
    }
    if (l->config.joins)
        link_ask_join(l);
    else
        ask_tables(l);
    return 0;
}

static void tell_pushed(struct link *l, const struct push_reply *r)
{
    struct parcel *push = backlog_ack(&l->backlog);

    l->push_since_ms = l->push_told_ms = l->now_ms;
    l->push_again = false;
    l->n_attempts = 0;
    l->events->min_clock(l->owner, l->config.shard, r->min_clock);
    l->events->pushed(l->owner, l->config.shard, push, r);
    parcel_free(push);
}

/* Its answers were lost, or another process got them. */
void link_take_applied(struct link *l)
{
    struct push_reply r = { .min_clock = l->joined.min_clock };

    while (l->backlog.first && l->backlog.first->seq <= l->joined.last_applied) {
        r.seq = l->backlog.first->seq;
        r.status = r.seq == l->joined.refused_seq ? l->joined.refused_status : 0;
        tell_pushed(l, &r);
    }
}

/* The last push that the shard may have seen. */
static uint64_t last_sent(const struct link *l)
{
    return l->backlog.last_seq > l->config.sent_seq ? l->backlog.last_seq : l->config.sent_seq;
}

static int take_join(struct link *l, const struct frame_header *h, const uint8_t *head)
{
    struct join_reply r;
    int status = message_read_join_reply(h, head, &r);

    if (status || l->phase != LINK_JOINING || h->request_id != l->greet_id)
        return status ? status : PS_EPROTO;
    if (r.status == PS_EFENCED) {
        l->events->fenced(l->owner, l->config.shard, r.fenced_below);
        return 0;
    }
    if (r.status) {
        link_state_refuse(l, "to let the worker join", r.status, r.text);
        return 0;
    }
    if (r.last_applied < l->backlog.last_acked || r.last_applied > last_sent(l)) {
        link_state_notice(l,
                          "has applied push %" PRIu64 ", and had acknowledged %" PRIu64
                          " of %" PRIu64 ": joining anew",
                          r.last_applied, l->backlog.last_acked, last_sent(l));
        l->events->fenced(l->owner, l->config.shard, 0);
        return 0;
    }
    if (l->was_ready && !l->rejoins && r.clock > l->config.join.clock) {
        link_state_notice(l,
                          "wants this worker to go on at clock %" PRIu64
                          ", and it has finished %" PRIu64 " steps: joining anew",
                          r.clock, l->config.join.clock);
        l->events->fenced(l->owner, l->config.shard, 0);
        return 0;
    }
    if ((l->was_ready || l->config.sent_seq) && !l->rejoins && !r.resumed)
        link_state_notice(l,
                          "has been restarted: it goes on from its newest checkpoint, or from "
                          "nothing if it has none; what it acknowledged after that is gone");
    l->joined = r;
    l->lease_ms = r.lease_ms;
    link_take_applied(l);
    ask_tables(l);
    return 0;
}

static int take_table(struct link *l, const struct frame_header *h, const uint8_t *head)
{
    struct name *name = names_find(&l->names, h->request_id);
    struct table_reply r;
    int status = message_read_table_reply(h, head, &r);
    bool is_first;

    if (status || !name || name->known)
        return status;
    is_first = !name->ever_known;
    if (r.status && (link_state_is_passing(r.status) || !is_first)) {
        link_state_refuse(l, "a table", r.status, r.text);
        return 0;
    }
    if (!r.status)
        names_know(&l->names, name, r.table_id);
    if (is_first)
        l->events->told(l->owner, l->config.shard, (uint32_t)(name - l->names.items), &r);
    if (l->phase == LINK_NAMING && !names_unknown(&l->names))
        link_take_ready(l);
    return 0;
}

/* Was the request refused for a reason that a new connection or incarnation cures? */
static bool take_cure(struct link *l, int status, const char *text)
{
    if (status == PS_EFENCED && l->phase == LINK_LEAVING)
        link_state_left(l);
    else if (status == PS_EFENCED)
        l->events->fenced(l->owner, l->config.shard, 0);
    else if (link_state_is_passing(status))
        link_state_lose(l, text[0] ? text : status_text(status));
    else
        return false;
    return true;
}

static int take_push(struct link *l, const struct frame_header *h, const uint8_t *head)
{
    const struct parcel *push = l->backlog.first;
    struct push_reply r;
    int status = message_read_push_reply(h, head, &r);

    if (status || !push || l->phase != LINK_READY)
        return status;
    if (h->request_id != push->request_id)
        return h->request_id > push->request_id && push->next
                   ? PS_EPROTO
                   : 0; /* a repeated answer is ignored */
    if (take_cure(l, r.status, r.text))
        return 0;
    if (r.seq != push->seq)
        return PS_EPROTO;
    tell_pushed(l, &r);
    return 0;
}

static int take_pull(struct link *l, const struct frame_header *h, const uint8_t *head,
                     const uint8_t *body)
{
    struct parcel *pull = l->pull;
    size_t n_bytes;
    int status;

    if (!pull || h->request_id != pull->request_id || l->phase != LINK_READY)
        return 0; /* to a pull that was given up */
    status =
        message_body(&l->hub->zstd, h, body, l->frame_max_bytes, &l->body, &body, &n_bytes);
    if (!status)
        status = message_read_pull_reply(h, head, body, n_bytes, &l->answer);
    if (status || take_cure(l, l->answer.status, l->answer.text))
        return status;
    if (!l->answer.status && l->answer.n_sections != pull->n_sections)
        return PS_ECOUNT;
    l->pull = NULL;
    l->n_attempts = 0;
    if (!l->answer.status)
        l->events->min_clock(l->owner, l->config.shard, l->answer.min_clock);
    l->events->pulled(l->owner, l->config.shard, pull, &l->answer);
    parcel_free(pull);
    return 0;
}

static int take_status(struct link *l, const struct frame_header *h, const uint8_t *head)
{
    struct status_reply r;
    int status = message_read_status_reply(h, head, &r);

    if (status)
        return status;
    if (h->type == FRAME_LEAVE_REPLY) {
        if (l->phase == LINK_LEAVING && h->request_id == l->greet_id)
            link_state_left(l);
    } else if (l->beat_id && h->request_id == l->beat_id && !take_cure(l, r.status, r.text)) {
        l->beat_id = 0;
        l->n_attempts = 0;
        if (!r.status)
            l->events->min_clock(l->owner, l->config.shard, r.min_clock);
    }
    return 0;
}

int link_take(struct link *l, const struct frame_header *h, const uint8_t *head,
              const uint8_t *body)
{
    switch (h->type) {
    case FRAME_HELLO_REPLY:
        return take_hello(l, h, head);
    case FRAME_JOIN_REPLY:
        return take_join(l, h, head);
    case FRAME_TABLE_REPLY:
        return take_table(l, h, head);
    case FRAME_PUSH_REPLY:
        return take_push(l, h, head);
    case FRAME_PULL_REPLY:
        return take_pull(l, h, head, body);
    case FRAME_BEAT_REPLY:
    case FRAME_LEAVE_REPLY:
        return take_status(l, h, head);
    default:
        return PS_EPROTO;
    }
}
