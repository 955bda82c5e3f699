#include "worker/client/discovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"
#include "proto/placement.h"

#define GREET_MS 5000u /* for one server */
#define NOTICE_MS 3000u
#define ROUND_MIN_MS 50u /* between two rounds over the list; doubles up to the maximum */
#define ROUND_MAX_MS 1000u

struct discovery {
    struct channel_loop *channels;         /* borrowed */
    const struct discovery_events *events; /* borrowed, static */
    void *owner;                           /* borrowed */
    struct address servers[DISCOVERY_SERVERS_MAX];
    uint32_t n_servers, at; /* the current server */
    struct hello hello;
    struct connector *connector; /* owned; NULL between attempts */
    bool over;
    uint32_t limit_ms, round_ms;
    uint64_t now_ms, started_ms, attempt_ms, next_ms, next_notice_ms;
    uint64_t request_id;
    char why[256]; /* of the last attempt that failed; "": none */
};

struct discovery *discovery_new(struct channel_loop *channels, const struct address *servers,
                                uint32_t n_servers, const struct hello *hello,
                                uint32_t limit_ms, const struct discovery_events *events,
                                void *owner)
{
    struct discovery *s = memory_try_alloc(sizeof *s);

    if (!s)
        return NULL;
    s->channels = channels;
    s->events = events;
    s->owner = owner;
    memcpy(s->servers, servers, n_servers * sizeof *servers);
    s->n_servers = n_servers;
    s->hello = *hello;
    s->hello.shard = MESSAGE_SHARD_LISTENER;
    s->hello.map_id = 0;
    s->limit_ms = limit_ms;
    s->round_ms = ROUND_MIN_MS;
    return s;
}

void discovery_free(struct discovery *s)
{
    if (!s)
        return;
    connector_drop(s->connector);
    free(s);
}

static void fail(struct discovery *s, int status, const char *why)
{
    char text[512];

    connector_drop(s->connector);
    s->connector = NULL;
    s->over = true;
    snprintf(text, sizeof text, "psd at %s: %.300s", s->servers[s->at].text, why);
    s->events->failed(s->owner, status, text);
}

/* On to the next server of the list, or to the next round. */
static void next(struct discovery *s, const char *why)
{
    char text[512];

    connector_drop(s->connector);
    s->connector = NULL;
    snprintf(s->why, sizeof s->why, "%s", why);
    if (s->now_ms - s->started_ms >= s->limit_ms) {
        snprintf(text, sizeof text, "no answer for %" PRIu64 " s: %s",
                 (s->now_ms - s->started_ms) / 1000, why);
        fail(s, PS_EDEADLINE, text);
        return;
    }
    if (s->now_ms >= s->next_notice_ms) {
        s->next_notice_ms = s->now_ms + NOTICE_MS;
        snprintf(text, sizeof text, "waiting for psd at %s: %s", s->servers[s->at].text, why);
        s->events->notice(s->owner, text);
    }
    s->at = (s->at + 1) % s->n_servers;
    s->next_ms = s->now_ms;
    if (s->at == 0) {
        s->next_ms += s->round_ms;
        s->round_ms = s->round_ms * 2 < ROUND_MAX_MS ? s->round_ms * 2 : ROUND_MAX_MS;
    }
}

static void on_connected(void *owner)
{
    struct discovery *s = owner;
    struct bytes frame = { 0 };
    int status = message_write_hello(&frame, ++s->request_id, &s->hello);

    if (!status)
        status = channel_send(connector_channel(s->connector), &frame);
    bytes_deinit(&frame);
    if (status)
        next(s, connector_why(status));
}

/* Do the counts describe a cluster? */
static bool is_cluster(const struct hello_reply *r)
{
    return r->n_nodes > 0 && r->n_nodes <= MESSAGE_NODES_MAX && r->shards_per_node > 0 &&
           r->shards_per_node <= PLACEMENT_N_SHARDS_MAX / r->n_nodes;
}

/* A standby: it knows who serves its shards. */
static bool knows_primary(const struct hello_reply *r)
{
    return r->status == PS_EMOVED && is_cluster(r) && r->groups.n == r->n_nodes &&
           r->node < r->n_nodes && r->groups.items[r->node].term &&
           r->groups.items[r->node].primary[0];
}

static void find(struct discovery *s, const struct hello_reply *r)
{
    connector_drop(s->connector);
    s->connector = NULL;
    s->over = true;
    s->events->found(s->owner, &s->servers[s->at], r);
}

static void receive_reply(struct discovery *s, const struct hello_reply *r)
{
    const char *text = r->text[0] ? r->text : status_text(r->status);

    if (knows_primary(r)) {
        find(s, r);
    } else if (r->status == PS_EMOVED || r->status == PS_ESTOPPING || r->status == -ENOMEM ||
               r->status == -EMFILE) {
        next(s, text);
    } else if (r->status) {
        fail(s, r->status, text);
    } else if (!is_cluster(r)) {
        fail(s, PS_ECLUSTER, "its handshake describes no cluster");
    } else {
        find(s, r);
    }
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct discovery *s = owner;
    struct hello_reply *r = memory_try_alloc(sizeof *r);
    int status = r ? PS_EPROTO : -ENOMEM;

    (void)body;
    if (r && header->type == FRAME_HELLO_REPLY)
        status = message_read_hello_reply(header, head, r);
    if (status)
        next(s, connector_why(status));
    else
        receive_reply(s, r);
    free(r);
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct discovery *s = owner;

    s->connector = NULL;
    if (connector_is_final(why))
        fail(s, why, connector_why(why));
    else
        next(s, connector_why(why));
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

/* During an attempt: the reason of the one before. */
static void give_up(struct discovery *s)
{
    char why[sizeof s->why];

    snprintf(why, sizeof why, "%s", s->why[0] ? s->why : "no answer to the handshake");
    next(s, why);
}

const struct address *discovery_servers(const struct discovery *s, uint32_t *ret_n)
{
    *ret_n = s->n_servers;
    return s->servers;
}

void discovery_tick(struct discovery *s, uint64_t now_ms)
{
    int status;

    if (!s->started_ms)
        s->started_ms = now_ms;
    s->now_ms = now_ms;
    if (s->over)
        return;
    if (s->connector) {
        if (now_ms - s->attempt_ms >= GREET_MS)
            next(s, "no answer to the handshake");
        else if (now_ms - s->started_ms >= s->limit_ms)
            give_up(s);
    } else if (now_ms >= s->next_ms) {
        s->attempt_ms = now_ms;
        status =
            connector_new(s->channels, &s->servers[s->at], &connector_events, s, &s->connector);
        if (status)
            next(s, connector_why(status));
    }
}
