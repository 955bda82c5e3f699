#include "worker/client/watcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/message_replication.h"
#include "worker/client/connector.h"

#define STEP_MS 2000u      /* for TCP, for the handshake, and for an answer that is due */
#define AGAIN_MS 50u       /* between two requests, if the first one's answer was no news */
#define N_ATTEMPTS_SOON 6u /* before it rests */

static void set_state(struct watcher *w, enum watcher_state state)
{
    w->state = state;
    w->since_ms = w->now_ms;
}

static void drop(struct watcher *w)
{
    connector_drop(w->connector);
    w->connector = NULL;
    w->above = 0; /* numbers are of one process alone */
}

static uint64_t delay_ms(const struct watcher *w)
{
    uint64_t ms = connector_backoff_ms(
        w->n_attempts, hash_mix2((uint64_t)(uintptr_t)w, w->request_id + w->n_attempts));

    if (w->hurries)
        return ms < WATCHER_HURRY_MS ? ms : WATCHER_HURRY_MS;
    return w->n_attempts < N_ATTEMPTS_SOON ? ms : WATCHER_REST_MS;
}

static void fail(struct watcher *w)
{
    drop(w);
    set_state(w, WATCHER_IDLE);
    w->next_ms = w->now_ms + delay_ms(w);
    w->n_attempts++;
}

/* Takes the frame. */
static void send_frame(struct watcher *w, int status, struct bytes *frame)
{
    if (!status)
        status = channel_send(connector_channel(w->connector), frame);
    bytes_deinit(frame);
    if (status)
        fail(w);
}

static void on_connected(void *owner)
{
    struct watcher *w = owner;
    struct hello hello = *w->config.hello;
    struct bytes frame = { 0 };

    snprintf(hello.role, sizeof hello.role, "watcher");
    hello.shard = MESSAGE_SHARD_LISTENER;
    set_state(w, WATCHER_GREETING);
    send_frame(w, message_write_hello(&frame, ++w->request_id, &hello), &frame);
}

static void ask(struct watcher *w)
{
    const struct watch watch = { .above = w->above, .wait_ms = WATCHER_WAIT_MS };
    struct bytes frame = { 0 };

    set_state(w, WATCHER_ASKING);
    send_frame(w, message_write_watch(&frame, ++w->request_id, &watch), &frame);
}

/* The owner may stop the watcher, or send it elsewhere. */
static void receive_groups(struct watcher *w, const struct groups *groups)
{
    uint64_t above = w->above;

    w->n_attempts = 0;
    w->above = groups->number;
    w->next_ms = groups->number > above ? w->now_ms : w->now_ms + AGAIN_MS;
    set_state(w, WATCHER_OPEN);
    w->config.groups(w->config.owner, groups);
}

static int receive_hello(struct watcher *w, const struct frame_header *h, const uint8_t *head)
{
    struct hello_reply *r = memory_try_alloc(sizeof *r);
    int status = r ? message_read_hello_reply(h, head, r) : -ENOMEM;

    if (!status && w->state != WATCHER_GREETING)
        status = PS_EPROTO;
    if (!status)
        status = r->status;
    if (!status) {
        set_state(w, WATCHER_OPEN);
        w->next_ms = w->now_ms;
    }
    free(r);
    return status;
}

static int receive_watch(struct watcher *w, const struct frame_header *h, const uint8_t *head)
{
    struct watch_reply *r = memory_try_alloc(sizeof *r);
    int status = r ? message_read_watch_reply(h, head, r) : -ENOMEM;

    if (!status && (w->state != WATCHER_ASKING || h->request_id != w->request_id))
        status = PS_EPROTO;
    if (!status)
        status = r->status;
    if (!status)
        receive_groups(w, &r->groups);
    free(r);
    return status;
}

static int on_frame(void *owner, const struct frame_header *h, const uint8_t *head,
                    const uint8_t *body)
{
    struct watcher *w = owner;
    int status = PS_EPROTO;

    (void)body;
    if (h->type == FRAME_HELLO_REPLY)
        status = receive_hello(w, h, head);
    else if (h->type == FRAME_WATCH_REPLY)
        status = receive_watch(w, h, head);
    if (status)
        fail(w);
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct watcher *w = owner;

    (void)why;
    w->connector = NULL;
    fail(w);
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

static void dial(struct watcher *w)
{
    set_state(w, WATCHER_DIALING);
    if (connector_new(w->config.channels, &w->address, &connector_events, w, &w->connector))
        fail(w);
}

void watcher_init(struct watcher *w, const struct watcher_config *config)
{
    *w = (struct watcher){ .config = *config };
}

void watcher_set(struct watcher *w, const struct address *address)
{
    if (w->state != WATCHER_OFF && strcmp(w->address.text, address->text) == 0)
        return;
    drop(w);
    w->address = *address;
    w->n_attempts = 0;
    w->next_ms = 0;
    set_state(w, WATCHER_IDLE);
}

void watcher_stop(struct watcher *w)
{
    drop(w);
    set_state(w, WATCHER_OFF);
}

void watcher_set_hurry(struct watcher *w, bool hurries)
{
    if (hurries && !w->hurries) {
        w->n_attempts = 0;
        w->next_ms = 0;
    }
    w->hurries = hurries;
}

void watcher_tick(struct watcher *w, uint64_t now_ms)
{
    uint64_t limit_ms = w->state == WATCHER_ASKING ? WATCHER_WAIT_MS + STEP_MS : STEP_MS;

    w->now_ms = now_ms;
    if (w->state == WATCHER_IDLE && now_ms >= w->next_ms)
        set_state(w, WATCHER_DUE);
    else if (w->state == WATCHER_DUE)
        dial(w);
    else if (w->state == WATCHER_OPEN && now_ms >= w->next_ms)
        ask(w);
    else if (w->state > WATCHER_DUE && w->state != WATCHER_OPEN &&
             now_ms - w->since_ms >= limit_ms)
        fail(w);
}

bool watcher_is_quiet(const struct watcher *w)
{
    return w->state < WATCHER_DUE || w->state > WATCHER_GREETING;
}
