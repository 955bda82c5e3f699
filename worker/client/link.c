#include "worker/client/link.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"
#include "worker/client/link_ask.h"
#include "worker/client/link_take.h"

static void on_connected(void *owner)
{
    link_ask_hello(owner);
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct link *l = owner;
    int status;

    l->events->traffic(
        l->owner, FRAME_HEADER_BYTES + (uint64_t)header->head_bytes + header->body_bytes, 0);
    status = link_take(l, header, head, body);
    if (status)
        link_state_lose(l, dial_why(status));
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct link *l = owner;

    l->dial = NULL;
    link_state_lose(l, dial_why(why));
}

static const struct dial_events dial_events = { on_connected, on_frame, on_closed };

static void start_dial(struct link *l)
{
    int status;

    link_state_set(l, LINK_DIALING);
    status = dial_new(l->hub, &l->config.address, &dial_events, l, &l->dial);
    if (status)
        link_state_lose(l, dial_why(status));
}

/* Whoever waits for an answer hears of it again and again. */
static void tell_overdue(struct link *l, const char *what, uint64_t since_ms, uint64_t *told_ms)
{
    if (l->now_ms - since_ms < l->config.answer_ms ||
        l->now_ms - *told_ms < l->config.answer_ms)
        return;
    *told_ms = l->now_ms;
    link_state_notice(l,
                      "has not answered %s for %" PRIu64
                      " s; if it waits for other workers or its disk, `psctl why` tells",
                      what, (l->now_ms - since_ms) / 1000);
}

static void tick_ready(struct link *l)
{
    if (l->pull)
        tell_overdue(l, "a pull", l->pull->asked_ms, &l->pull_told_ms);
    if (l->backlog.first) {
        tell_overdue(l, "a push", l->push_since_ms, &l->push_told_ms);
        if (l->now_ms - l->push_since_ms >= l->config.give_up_ms) {
            link_state_over(l, PS_EDEADLINE, "has not answered a push for %" PRIu64 " s",
                            (l->now_ms - l->push_since_ms) / 1000);
            return;
        }
    }
    if (l->beat_id && l->now_ms - l->beat_sent_ms >= l->config.answer_ms)
        link_state_lose(l, "no answer to a heartbeat");
    else if (l->config.joins && !l->beat_id && l->now_ms >= l->beat_due_ms)
        link_ask_beat(l);
}

static void tick_away(struct link *l)
{
    static const char *const step[] = { [LINK_DIALING] = "the connection",
                                        [LINK_GREETING] = "the greeting",
                                        [LINK_JOINING] = "the join",
                                        [LINK_NAMING] = "the tables" };
    uint64_t away_ms = l->now_ms - l->away_since_ms;
    char why[64];

    if (away_ms >= (l->was_ready ? l->config.give_up_ms : l->config.connect_ms)) {
        if (l->phase != LINK_AWAY)
            snprintf(l->why, sizeof l->why, "no answer to %s", step[l->phase]);
        link_state_over(l, PS_EDEADLINE, "has been away for %" PRIu64 " s: %s", away_ms / 1000,
                        l->why);
    } else if (l->phase == LINK_AWAY) {
        if (l->now_ms >= l->next_try_ms)
            start_dial(l);
    } else if (l->now_ms - l->phase_since_ms >= LINK_GREET_MS) {
        snprintf(why, sizeof why, "no answer to %s for %u s", step[l->phase],
                 LINK_GREET_MS / 1000);
        link_state_lose(l, why);
    }
}

void link_tick(struct link *l, uint64_t now_ms)
{
    if (!l->now_ms)
        l->away_since_ms = now_ms;
    l->now_ms = now_ms;
    if (l->phase == LINK_READY)
        tick_ready(l);
    else if (l->phase == LINK_LEAVING && now_ms - l->phase_since_ms >= LINK_GREET_MS)
        link_state_left(l);
    else if (l->phase < LINK_READY)
        tick_away(l);
}

void link_beat_soon(struct link *l)
{
    l->beat_due_ms = 0;
}

struct link *link_new(struct channel_hub *hub, const struct link_config *config,
                      const struct link_events *events, void *owner)
{
    struct link *l = mem_alloc(sizeof *l);

    l->hub = hub;
    l->config = *config;
    l->events = events;
    l->owner = owner;
    l->backlog.last_acked = l->backlog.last_seq = config->acked_seq;
    return l;
}

void link_free(struct link *l)
{
    if (!l)
        return;
    link_state_hang_up(l);
    backlog_clear(&l->backlog);
    parcel_free(l->pull);
    names_deinit(&l->names);
    buf_deinit(&l->body);
    free(l);
}

void link_push(struct link *l, struct parcel *push)
{
    if (!l->backlog.first) {
        l->push_since_ms = l->push_told_ms = l->now_ms;
        l->push_again = false;
    }
    backlog_add(&l->backlog, push);
    if (l->phase == LINK_READY && push->seq <= l->joined.last_applied)
        link_take_applied(l);
    else
        link_ask_push(l, push);
}

void link_pull(struct link *l, struct parcel *pull)
{
    assert(!l->pull);
    l->pull = pull;
    pull->after_seq = l->backlog.last_seq;
    pull->asked_ms = l->pull_told_ms = l->now_ms;
    link_ask_pull(l);
}

void link_drop_pull(struct link *l)
{
    parcel_free(l->pull);
    l->pull = NULL;
}

void link_table(struct link *l, const struct table_request *request)
{
    names_add(&l->names, request);
    if (l->phase == LINK_READY || l->phase == LINK_NAMING)
        link_ask_table(l, &l->names.items[l->names.n - 1]);
}

void link_drop_table(struct link *l)
{
    names_drop_last(&l->names);
    if (l->phase == LINK_NAMING && !names_unknown(&l->names))
        link_take_ready(l);
}

void link_rejoin(struct link *l, uint64_t incarnation, uint64_t clock, uint32_t delay_ms)
{
    if (l->phase == LINK_OVER)
        return;
    link_state_hang_up(l);
    backlog_clear(&l->backlog);
    link_drop_pull(l);
    l->rejoins = l->was_ready;
    l->config.sent_seq = 0;
    l->joined.last_applied = 0;
    l->config.join.incarnation = incarnation;
    l->config.join.clock = clock;
    l->away_since_ms = l->now_ms;
    link_state_set(l, LINK_AWAY);
    l->next_try_ms = l->now_ms + delay_ms;
}

void link_set_clock(struct link *l, uint64_t clock)
{
    l->config.join.clock = clock;
}

void link_leave(struct link *l)
{
    if (l->phase != LINK_READY || !l->config.joins)
        link_state_left(l);
    else
        link_ask_leave(l);
}
