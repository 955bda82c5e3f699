/* From top to bottom: requests, replies, the timer, the public functions. How a connection ends: link_phase.c. */
#include "worker/client/shard_link.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/client/link_phase.h"

#define REPORT_MS \
    500u /* from a heartbeat to the next one that goes early, as there is a report */
#define GREET_MS 5000u /* for each step from TCP to ready, and for a farewell */
#define FRAME_LIMIT_MAX (1u << 30)

/* ---- requests: each function sends one and notes its number; a failure drops the connection ---- */

static void send_hello(void *owner)
{
    struct shard_link *l = owner;
    struct bytes frame = { 0 };

    link_phase_set(l, PHASE_HANDSHAKE);
    l->channel = l->io ? NULL : connector_channel(l->connector);
    l->frame_max_bytes = FRAME_MAX_BYTES_DEFAULT;
    l->greet_id = ++l->last_request_id;
    link_phase_send(l, "a handshake",
                    message_write_hello(&frame, l->greet_id, &l->config.hello), &frame);
}

static void send_join(struct shard_link *l)
{
    struct join join = l->config.join;
    struct bytes frame = { 0 };

    link_phase_set(l, PHASE_JOINING);
    join.last_acked = l->unacked.last_acked;
    /* A shard that knows nothing of this worker any more must take what is sent again. */
    if (l->unacked.first)
        join.clock = l->unacked.first->clock;
    else if (l->config.sent_seq > l->unacked.last_seq)
        join.clock = l->config.sent_clock;
    l->greet_id = ++l->last_request_id;
    link_phase_send(l, "a join", message_write_join(&frame, l->greet_id, &join), &frame);
}

static void send_table(struct shard_link *l, struct requested_table *table)
{
    struct bytes frame = { 0 };

    table->request_id = ++l->last_request_id;
    link_phase_send(l, "a table",
                    message_write_table(&frame, table->request_id, &table->request), &frame);
}

/* Nothing happens unless the link is READY. */
static void send_push(struct shard_link *l, struct request *r)
{
    struct bytes frame = { 0 };
    struct push push;

    if (l->phase != PHASE_READY || l->held_until_ms)
        return;
    r->request_id = ++l->last_request_id;
    request_push(r, l->tables.shard_ids, &push);
    /* On the next connection it goes with its keys, and has to fit then, too. */
    if (request_push_bytes_max(r) <= l->frame_max_bytes)
        named_pulls_name(&l->named, r, &push);
    link_phase_send(l, "a push", request_frame_push(r, &push, l->channels, l->zstd, &frame),
                    &frame);
}

/* The queue's next one. */
static void send_pull(struct shard_link *l, struct request *r)
{
    struct bytes frame = { 0 };

    r->keep_number = l->config.names_keys ? named_pulls_ask(&l->named) : 0;
    pull_queue_sent(&l->pulls, ++l->last_request_id);
    link_phase_send(
        l, "a pull",
        request_frame_pull(r, l->tables.shard_ids, l->now_ms, l->channels, l->zstd, &frame),
        &frame);
}

/* Those that were asked for before this push, as many as the shard takes at a time. */
static void send_pulls(struct shard_link *l, uint64_t before_seq)
{
    const uint32_t n_max = l->config.joins ? PULL_QUEUE_PARKED_MAX : PULL_QUEUE_READ_MAX;

    while (l->phase == PHASE_READY && !l->held_until_ms) {
        struct request *r = pull_queue_next(&l->pulls, n_max, l->frame_max_bytes);

        if (!r || r->after_seq >= before_seq)
            return;
        send_pull(l, r);
    }
}

/* Pushes and pulls, in the order in which they were asked for; returns how many pushes had been sent before. */
static uint64_t send_pending(struct shard_link *l)
{
    uint64_t n_resent = 0;

    if (l->held_until_ms)
        return 0;
    for (struct request *p = l->unacked.first; p; p = p->next) {
        send_pulls(l, p->seq);
        n_resent += p->request_id != 0;
        send_push(l, p);
    }
    send_pulls(l, UINT64_MAX);
    return n_resent;
}

static void send_beat(struct shard_link *l)
{
    struct beat beat = { .clock = l->config.join.clock };
    struct bytes frame = { 0 };

    l->beat_id = ++l->last_request_id;
    l->beat_sent_ms = l->now_ms;
    l->beat_due_ms = l->now_ms + l->lease_ms / 3;
    l->events->fill_beat(l->owner, l->config.shard, &beat);
    link_phase_send(l, "a heartbeat", message_write_beat(&frame, l->beat_id, &beat), &frame);
}

static void send_leave(struct shard_link *l)
{
    struct bytes frame = { 0 };

    if (l->phase == PHASE_READY && l->events->has_report(l->owner, l->config.shard))
        send_beat(l);
    link_phase_set(l, PHASE_LEAVING);
    l->greet_id = ++l->last_request_id;
    link_phase_send(l, "a farewell",
                    message_write_leave(&frame, l->greet_id, l->config.join.clock), &frame);
}

/* ---- replies ---- */

/* Ends the link to a shard that accepts connections and joins but answers no push; then returns false. */
static bool check_push_timeout(struct shard_link *l)
{
    uint64_t waited_ms = l->now_ms - l->push_since_ms;

    l->push_notice_ms = l->now_ms;
    if (l->unacked.first && l->push_resent && waited_ms >= l->config.give_up_ms) {
        link_phase_give_up(l, PS_EDEADLINE, "has not taken a push for %" PRIu64 " s: %s",
                           waited_ms / 1000, l->why);
        return false;
    }
    if (!l->push_resent)
        l->push_since_ms = l->now_ms;
    l->push_resent = l->unacked.first != NULL;
    return true;
}

/* Behind a push that had to wait for a suspect, pushes wait for all shards to refuse it, for a lease at most. */
static void hold_for_suspects(struct shard_link *l)
{
    if (l->was_busy && l->events->has_suspects(l->owner))
        l->held_until_ms = l->now_ms + l->lease_ms + 1;
    l->was_busy = false;
}

static void release_held(struct shard_link *l)
{
    if (!l->held_until_ms ||
        (l->now_ms < l->held_until_ms && l->events->has_suspects(l->owner)))
        return;
    l->held_until_ms = 0;
    l->events->resent(l->owner, l->config.shard, send_pending(l));
}

static void become_ready(struct shard_link *l)
{
    bool is_return = l->was_ready && !l->rejoins;
    uint64_t n_resent;

    if (!check_push_timeout(l))
        return;
    link_phase_set(l, PHASE_READY);
    l->was_ready = true;
    l->rejoins = false;
    l->next_notice_ms = 0;
    l->pull_notice_ms = l->now_ms;
    l->beat_due_ms = l->now_ms + l->lease_ms / 3;
    l->events->ready(l->owner, l->config.shard, &l->joined);
    /* Before the pushes: one that has to wait for a suspect ends this connection, and the next one. */
    if (l->phase == PHASE_READY && l->config.joins && l->config.join.relays &&
        l->events->may_join(l->owner))
        send_beat(l);
    hold_for_suspects(l);
    n_resent = send_pending(l);
    if (is_return && l->held_until_ms && l->unacked.first)
        link_phase_notice(l,
                          "is back; a push waits until all shards refuse a suspected worker");
    else if (is_return)
        link_phase_notice(l, "is back; %" PRIu64 " push%s sent again", n_resent,
                          n_resent == 1 ? " was" : "es were");
    if (is_return)
        l->events->reconnected(l->owner, l->config.shard, n_resent);
}

static void send_tables(struct shard_link *l)
{
    link_phase_set(l, PHASE_TABLES);
    table_ids_reset(&l->tables);
    for (uint32_t i = 0; i < l->tables.n && l->phase == PHASE_TABLES; i++)
        send_table(l, &l->tables.items[i]);
    if (!l->tables.n)
        become_ready(l);
}

/* A worker that is a member at some shards only holds up the others there, and its pushes cannot go on. */
static void join_with_others(struct shard_link *l)
{
    if (l->events->may_join(l->owner))
        send_join(l);
}

static int receive_hello(struct shard_link *l, const struct frame_header *h,
                         const uint8_t *head)
{
    struct hello_reply r;
    int status = message_read_hello_reply(h, head, &r);

    if (status || l->phase != PHASE_HANDSHAKE || h->request_id != l->greet_id)
        return status ? status : PS_EPROTO;
    if (r.map_id == l->config.hello.map_id &&
        !l->events->greeted(l->owner, l->config.shard, &r)) {
        if (l->phase == PHASE_HANDSHAKE)
            link_phase_lose(l, "it is the primary of an earlier term");
        return 0;
    }
    if (r.status) {
        link_phase_refused(l, "the handshake", r.status, r.text);
        return 0;
    }
    if (r.map_id != l->config.hello.map_id) {
        link_phase_give_up(l, PS_ECLUSTER,
                           "belongs to another cluster than the server that was asked first");
        return 0;
    }
    l->groups_number = r.groups.number;
    if (r.frame_max_bytes && r.frame_max_bytes <= FRAME_LIMIT_MAX) {
        l->frame_max_bytes = r.frame_max_bytes;
        if (l->io)
            io_connection_set_frame_max(l->io, r.frame_max_bytes);
        else
            l->channel->frame_max_bytes = r.frame_max_bytes;
    }
    if (l->config.joins) {
        link_phase_set(l, PHASE_GREETED);
        join_with_others(l);
    } else {
        send_tables(l);
    }
    return 0;
}

static void ack_push(struct shard_link *l, const struct push_reply *r)
{
    struct request *push = request_queue_ack(&l->unacked);

    l->push_since_ms = l->push_notice_ms = l->now_ms;
    l->push_resent = false;
    l->n_attempts = 0;
    l->events->min_clock(l->owner, l->config.shard, r->min_clock);
    l->events->pushed(l->owner, l->config.shard, push, r);
    request_free(push);
}

/* Acknowledges pushes that the shard has applied: their replies were lost, or another process got them. */
static void ack_applied(struct shard_link *l)
{
    struct push_reply r = { .min_clock = l->joined.min_clock };

    while (l->unacked.first && l->unacked.first->seq <= l->joined.last_applied) {
        r.seq = l->unacked.first->seq;
        r.status = r.seq == l->joined.refused_seq ? l->joined.refused_status : 0;
        ack_push(l, &r);
    }
}

/* The last push that the shard may have seen. */
static uint64_t last_sent(const struct shard_link *l)
{
    return l->unacked.last_seq > l->config.sent_seq ? l->unacked.last_seq : l->config.sent_seq;
}

static int receive_join(struct shard_link *l, const struct frame_header *h, const uint8_t *head)
{
    struct join_reply r;
    int status = message_read_join_reply(h, head, &r);

    if (status || l->phase != PHASE_JOINING || h->request_id != l->greet_id)
        return status ? status : PS_EPROTO;
    if (r.status == PS_EFENCED) {
        l->events->fenced(l->owner, l->config.shard, r.fenced_below);
        return 0;
    }
    if (r.status) {
        link_phase_refused(l, "to let the worker join", r.status, r.text);
        return 0;
    }
    if (r.n_backups != l->config.join.n_backups) {
        link_phase_give_up(
            l, PS_EJOB, "is of a version that does not know backup workers: upgrade it first");
        return 0;
    }
    if (r.last_applied < l->unacked.last_acked || r.last_applied > last_sent(l)) {
        link_phase_notice(l,
                          "has applied push %" PRIu64 ", and had acknowledged %" PRIu64
                          " of %" PRIu64 ": joining anew",
                          r.last_applied, l->unacked.last_acked, last_sent(l));
        l->events->fenced(l->owner, l->config.shard, 0);
        return 0;
    }
    if (l->was_ready && !l->rejoins && r.clock > l->config.join.clock) {
        link_phase_notice(l,
                          "wants this worker to go on at clock %" PRIu64
                          ", and it has finished %" PRIu64 " steps: joining anew",
                          r.clock, l->config.join.clock);
        l->events->fenced(l->owner, l->config.shard, 0);
        return 0;
    }
    if ((l->was_ready || l->config.sent_seq) && !l->rejoins && !r.resumed)
        link_phase_notice(l,
                          "has been restarted: it goes on from its newest checkpoint, or from "
                          "nothing if it has none; what it acknowledged after that is gone");
    l->joined = r;
    l->lease_ms = r.lease_ms;
    ack_applied(l);
    send_tables(l);
    return 0;
}

static int receive_table(struct shard_link *l, const struct frame_header *h,
                         const uint8_t *head)
{
    struct requested_table *table = table_ids_find(&l->tables, h->request_id);
    struct table_reply r;
    int status = message_read_table_reply(h, head, &r);
    bool is_first;

    if (status || !table || table->known)
        return status;
    is_first = !table->ever_known;
    if (r.status && (link_phase_is_transient(r.status) || !is_first)) {
        link_phase_refused(l, "a table", r.status, r.text);
        return 0;
    }
    if (!r.status)
        table_ids_set(&l->tables, table, r.table_id);
    if (is_first)
        l->events->table(l->owner, l->config.shard, (uint32_t)(table - l->tables.items), &r);
    if (l->phase == PHASE_TABLES && table_ids_all_known(&l->tables))
        become_ready(l);
    return 0;
}

/* Was the request refused for a reason that a new connection or incarnation cures? */
static bool handle_curable(struct shard_link *l, int status, const char *text)
{
    if (status == PS_EFENCED && l->phase == PHASE_LEAVING)
        link_phase_finish_leave(l);
    else if (status == PS_EFENCED)
        l->events->fenced(l->owner, l->config.shard, 0);
    else if (link_phase_is_transient(status))
        link_phase_lose(l, text[0] ? text : status_text(status));
    else
        return false;
    return true;
}

static int receive_push(struct shard_link *l, const struct frame_header *h, const uint8_t *head)
{
    const struct request *push = l->unacked.first;
    struct push_reply r;
    int status = message_read_push_reply(h, head, &r);

    if (status || !push || l->phase != PHASE_READY)
        return status;
    if (h->request_id != push->request_id)
        return h->request_id > push->request_id && push->next
                   ? PS_EPROTO
                   : 0; /* a repeated answer is ignored */
    l->named.is_off = l->named.is_off || r.status == PS_EKEYS;
    if (handle_curable(l, r.status, r.text)) {
        l->was_busy = r.status == -EBUSY;
        return 0;
    }
    if (r.seq != push->seq)
        return PS_EPROTO;
    ack_push(l, &r);
    return 0;
}

/* Answered: its place is free for another one. */
static void finish_pull(struct shard_link *l, struct request *pull, bool is_kept)
{
    pull_queue_remove(&l->pulls, pull);
    if (is_kept && pull->keep_number)
        named_pulls_add(&l->named, pull);
    else
        request_free(pull);
    send_pulls(l, UINT64_MAX);
}

static struct bytes *frame_buffer(struct shard_link *l)
{
    return l->io ? io_connection_frame_buffer(l->io) : channel_frame_buffer(l->channel);
}

static int receive_pull(struct shard_link *l, const struct frame_header *h, const uint8_t *head,
                        const uint8_t *body)
{
    struct request *pull = pull_queue_find(&l->pulls, h->request_id);
    size_t n_bytes;
    int status;

    if (!pull || l->phase != PHASE_READY)
        return 0;
    if (pull->is_dropped) {
        finish_pull(l, pull, false);
        return 0;
    }
    status = message_body(&l->channels->zstd, h, body, l->frame_max_bytes, &l->body, &body,
                          &n_bytes);
    if (!status)
        status = message_read_pull_reply(h, head, body, n_bytes, &l->answer);
    if (status || handle_curable(l, l->answer.status, l->answer.text))
        return status;
    if (!l->answer.status && l->answer.n_sections != pull->n_sections)
        return PS_ECOUNT;
    l->n_attempts = 0;
    if (!l->answer.status)
        l->events->min_clock(l->owner, l->config.shard, l->answer.min_clock);
    l->events->pulled(l->owner, l->config.shard, pull, &l->answer,
                      h->flags & FRAME_ZSTD ? &l->body : frame_buffer(l));
    finish_pull(l, pull, !l->answer.status && l->answer.kept);
    return 0;
}

static void note_groups(struct shard_link *l, uint64_t number)
{
    if (number <= l->groups_number)
        return;
    l->groups_number = number;
    l->events->groups_changed(l->owner, l->config.shard);
}

static int receive_status(struct shard_link *l, const struct frame_header *h,
                          const uint8_t *head)
{
    struct status_reply r;
    int status = message_read_status_reply(h, head, &r);

    if (status)
        return status;
    if (h->type == FRAME_LEAVE_REPLY) {
        if (l->phase == PHASE_LEAVING && h->request_id == l->greet_id)
            link_phase_finish_leave(l);
    } else if (!l->config.joins && h->request_id == l->beat_id &&
               !link_phase_is_transient(r.status)) {
        l->beat_id = 0; /* of a reader's report: an older psd refuses it */
        l->events->beat_answered(l->owner, l->config.shard, &r.suspects, &r.doubted);
    } else if (l->beat_id && h->request_id == l->beat_id &&
               !handle_curable(l, r.status, r.text)) {
        l->beat_id = 0;
        if (!l->unacked.first) /* else it is its answer that shows that all is well */
            l->n_attempts = 0;
        if (!r.status || r.status == -EINPROGRESS) {
            l->events->min_clock(l->owner, l->config.shard, r.min_clock);
            l->events->beat_answered(l->owner, l->config.shard, &r.suspects, &r.doubted);
            note_groups(l, r.groups_number);
        }
    }
    return 0;
}

static int receive(struct shard_link *l, const struct frame_header *h, const uint8_t *head,
                   const uint8_t *body)
{
    if (l->phase == PHASE_LEAVING && h->type != FRAME_LEAVE_REPLY)
        return 0; /* a reply to a request before the farewell */
    switch (h->type) {
    case FRAME_HELLO_REPLY:
        return receive_hello(l, h, head);
    case FRAME_JOIN_REPLY:
        return receive_join(l, h, head);
    case FRAME_TABLE_REPLY:
        return receive_table(l, h, head);
    case FRAME_PUSH_REPLY:
        return receive_push(l, h, head);
    case FRAME_PULL_REPLY:
        return receive_pull(l, h, head, body);
    case FRAME_BEAT_REPLY:
    case FRAME_LEAVE_REPLY:
        return receive_status(l, h, head);
    default:
        return PS_EPROTO;
    }
}

/* ---- the timer, and the owner's calls ---- */

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct shard_link *l = owner;
    int status;

    l->heard_ms = l->now_ms;
    l->events->traffic(
        l->owner, FRAME_HEADER_BYTES + (uint64_t)header->head_bytes + header->body_bytes, 0);
    status = receive(l, header, head, body);
    if (status)
        link_phase_lose(l, connector_why(status));
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct shard_link *l = owner;

    l->connector = NULL;
    l->io = NULL;
    link_phase_lose(l, connector_why(why));
}

static const struct connector_events connector_events = { send_hello, on_frame, on_closed };

static void start_dial(struct shard_link *l)
{
    int status;

    link_phase_set(l, PHASE_DIALING);
    if (l->config.io)
        status =
            io_connection_new(l->config.io, &l->config.address, &connector_events, l, &l->io);
    else
        status =
            connector_new(l->channels, &l->config.address, &connector_events, l, &l->connector);
    if (status)
        link_phase_lose(l, connector_why(status));
}

/* Repeats a notice while an answer is overdue. */
static void notice_overdue(struct shard_link *l, const char *what, uint64_t since_ms,
                           uint64_t *notice_ms)
{
    if (l->now_ms - since_ms < l->config.answer_ms ||
        l->now_ms - *notice_ms < l->config.answer_ms)
        return;
    *notice_ms = l->now_ms;
    link_phase_notice(l,
                      "has not answered %s for %" PRIu64
                      " s; if it waits for other workers or its disk, `psctl why` shows it",
                      what, (l->now_ms - since_ms) / 1000);
}

static bool is_beat_due(const struct shard_link *l)
{
    return l->config.joins && l->now_ms >= l->beat_due_ms && l->events->may_join(l->owner);
}

static bool is_report_due(const struct shard_link *l)
{
    return l->now_ms - l->beat_sent_ms >= REPORT_MS &&
           l->events->has_report(l->owner, l->config.shard) &&
           (!l->config.joins || l->events->may_join(l->owner));
}

static void tick_ready(struct shard_link *l)
{
    release_held(l);
    if (l->phase != PHASE_READY)
        return;
    if (pull_queue_oldest(&l->pulls))
        notice_overdue(l, "a pull", pull_queue_oldest(&l->pulls)->asked_ms, &l->pull_notice_ms);
    if (l->unacked.first) {
        notice_overdue(l, "a push", l->push_since_ms, &l->push_notice_ms);
        if (l->now_ms - l->push_since_ms >= l->config.give_up_ms) {
            link_phase_give_up(l, PS_EDEADLINE, "has not answered a push for %" PRIu64 " s",
                               (l->now_ms - l->push_since_ms) / 1000);
            return;
        }
    }
    if (l->beat_id && l->now_ms - l->beat_sent_ms >= l->config.answer_ms)
        link_phase_lose(l, "no answer to a heartbeat");
    else if (!l->beat_id && (is_beat_due(l) || is_report_due(l)))
        send_beat(l);
}

static void tick_away(struct shard_link *l)
{
    static const char *const step[] = { [PHASE_DIALING] = "the connection",
                                        [PHASE_HANDSHAKE] = "the handshake",
                                        [PHASE_JOINING] = "the join",
                                        [PHASE_TABLES] = "the tables" };
    uint64_t away_ms = l->now_ms - l->away_since_ms;
    char why[64];

    if (away_ms >= (l->was_ready ? l->config.give_up_ms : l->config.connect_ms)) {
        if (l->phase != PHASE_AWAY)
            snprintf(l->why, sizeof l->why, "no answer to %s", step[l->phase]);
        link_phase_give_up(l, PS_EDEADLINE, "has been away for %" PRIu64 " s: %s",
                           away_ms / 1000, l->why);
    } else if (l->phase == PHASE_AWAY) {
        if (l->now_ms >= l->next_try_ms)
            start_dial(l);
    } else if (l->now_ms - l->phase_since_ms >= GREET_MS) {
        snprintf(why, sizeof why, "no answer to %s for %u s", step[l->phase], GREET_MS / 1000);
        link_phase_lose(l, why);
    }
}

void shard_link_tick(struct shard_link *l, uint64_t now_ms)
{
    if (!l->now_ms)
        l->away_since_ms = now_ms;
    l->now_ms = now_ms;
    if (l->phase == PHASE_READY)
        tick_ready(l);
    else if (l->phase == PHASE_GREETED)
        join_with_others(l); /* no timer: a link to a shard that is away ends the wait */
    else if (l->phase == PHASE_LEAVING && now_ms - l->phase_since_ms >= GREET_MS)
        link_phase_finish_leave(l);
    else if (l->phase < PHASE_READY)
        tick_away(l);
}

void shard_link_move(struct shard_link *l, const struct address *address)
{
    l->config.address = *address;
    if (l->phase >= PHASE_LEAVING)
        return;
    link_phase_disconnect(l);
    if (l->phase == PHASE_READY)
        l->away_since_ms = l->now_ms;
    link_phase_set(l, PHASE_AWAY);
    l->n_attempts = 0;
    l->next_try_ms = l->now_ms;
    snprintf(l->why, sizeof l->why, "another psd is its primary");
    l->events->lost(l->owner, l->config.shard);
}

bool shard_link_is_greeted(const struct shard_link *l)
{
    return l->phase >= PHASE_GREETED && l->phase <= PHASE_READY;
}

bool shard_link_is_silent(const struct shard_link *l)
{
    return l->was_ready && !l->rejoins && l->now_ms - l->heard_ms > l->lease_ms;
}

void shard_link_beat_soon(struct shard_link *l)
{
    l->beat_due_ms = 0;
}

struct shard_link *shard_link_new(struct channel_loop *channels,
                                  const struct shard_link_config *config,
                                  const struct shard_link_events *events, void *owner)
{
    struct shard_link *l = memory_try_alloc(sizeof *l);

    if (!l)
        return NULL;
    l->channels = channels;
    l->zstd = config->compress ? &channels->zstd : NULL;
    l->config = *config;
    l->events = events;
    l->owner = owner;
    l->unacked.last_acked = l->unacked.last_seq = config->acked_seq;
    return l;
}

void shard_link_free(struct shard_link *l)
{
    if (!l)
        return;
    link_phase_disconnect(l);
    request_queue_clear(&l->unacked);
    pull_queue_clear(&l->pulls);
    named_pulls_reset(&l->named);
    table_ids_deinit(&l->tables);
    bytes_deinit(&l->body);
    free(l);
}

void shard_link_push(struct shard_link *l, struct request *push)
{
    if (!l->unacked.first) {
        l->push_since_ms = l->push_notice_ms = l->now_ms;
        l->push_resent = false;
    }
    request_queue_add(&l->unacked, push);
    if (l->phase == PHASE_READY && push->seq <= l->joined.last_applied)
        ack_applied(l);
    else
        send_push(l, push);
}

void shard_link_pull(struct shard_link *l, struct request *pull)
{
    pull->after_seq = l->unacked.last_seq;
    pull->asked_ms = l->now_ms;
    if (!pull_queue_oldest(&l->pulls))
        l->pull_notice_ms = l->now_ms;
    pull_queue_add(&l->pulls, pull);
    send_pulls(l, UINT64_MAX);
}

void shard_link_drop_ended_pulls(struct shard_link *l)
{
    pull_queue_drop_ended(&l->pulls);
}

void shard_link_cork(struct shard_link *l)
{
    if (l->channel)
        channel_cork(l->channel);
}

void shard_link_uncork(struct shard_link *l)
{
    if (l->channel)
        channel_uncork(l->channel);
}

int shard_link_reserve_table(struct shard_link *l)
{
    return table_ids_reserve(&l->tables);
}

void shard_link_table(struct shard_link *l, const struct table_request *request)
{
    struct requested_table *table = table_ids_add(&l->tables, request);

    if (l->phase == PHASE_READY || l->phase == PHASE_TABLES)
        send_table(l, table);
}

void shard_link_drop_table(struct shard_link *l)
{
    assert(l->tables.n > 0);
    l->tables.n--;
    if (l->phase == PHASE_TABLES && table_ids_all_known(&l->tables))
        become_ready(l);
}

void shard_link_rejoin(struct shard_link *l, uint64_t incarnation, uint64_t clock,
                       uint32_t delay_ms)
{
    if (l->phase == PHASE_OVER)
        return;
    link_phase_disconnect(l);
    l->events->lost(l->owner, l->config.shard);
    request_queue_clear(&l->unacked);
    pull_queue_clear(&l->pulls);
    l->rejoins = l->was_ready;
    l->config.sent_seq = 0;
    l->joined.last_applied = 0;
    l->config.join.incarnation = incarnation;
    l->config.join.clock = clock;
    link_phase_set(l, PHASE_AWAY);
    l->away_since_ms = l->now_ms;
    l->next_try_ms = l->now_ms + delay_ms;
}

void shard_link_set_clock(struct shard_link *l, uint64_t clock)
{
    l->config.join.clock = clock;
}

void shard_link_leave(struct shard_link *l)
{
    bool has_joined = l->phase == PHASE_READY || l->phase == PHASE_TABLES ||
                      l->phase == PHASE_JOINING; /* or will have, when it reads the farewell */

    if (has_joined && l->config.joins)
        send_leave(l);
    else
        link_phase_finish_leave(l);
}
