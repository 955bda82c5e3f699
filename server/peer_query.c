#include "server/peer_query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"

static void end(struct peer_query *q, const struct err *err) ON_MAIN
{
    const struct peer_answer answer = q->answer;

    peer_query_drop(q);
    q->done(q->owner, err, &answer);
}

static void fail(struct peer_query *q, int status, const char *why) ON_MAIN
{
    struct err err = { 0 };

    err_set(&err, status, "%.128s: %.120s", q->peer, why);
    end(q, &err);
}

static void on_connected(void *owner)
{
    struct peer_query *q = owner;
    int status;

    enter_main();
    status = message_write_hello(&q->out, 1, &q->hello);
    if (!status)
        status = channel_send(connector_channel(q->connector), &q->out);
    if (status) {
        bytes_deinit(&q->out);
        fail(q, status, status_text(status));
    }
}

static void read_answer(struct peer_query *q, const struct hello_reply *reply)
{
    const struct group *group = &reply->groups.items[q->node];

    if (q->node >= reply->groups.n)
        return;
    q->answer.term = group->term;
    snprintf(q->answer.primary, sizeof q->answer.primary, "%s", group->primary);
    /* Under the address that it was asked at, or under that of its node in the cluster. A standby's cluster is its
     * primary's, and names that one so, which may be who asks. */
    q->answer.is_primary = strcmp(group->primary, q->peer) == 0 ||
                           (reply->node < reply->n_nodes &&
                            strcmp(group->primary, reply->nodes[reply->node]) == 0 &&
                            strcmp(group->primary, q->own) != 0);
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct hello_reply *reply = memory_alloc(sizeof *reply);
    struct peer_query *q = owner;
    int status = header->type == FRAME_HELLO_REPLY
                     ? message_read_hello_reply(header, head, reply)
                     : PS_EPROTO;
    const struct err none = { 0 };

    (void)body;
    enter_main();
    if (status) {
        fail(q, status, status_text(status));
    } else if (reply->status) {
        fail(q, reply->status, reply->text);
    } else {
        read_answer(q, reply);
        end(q, &none);
    }
    free(reply);
    return UV_ECANCELED;
}

static void on_closed(void *owner, int why)
{
    struct peer_query *q = owner;

    enter_main();
    q->connector = NULL;
    fail(q, why, connector_why(why));
}

static const struct connector_events events = { on_connected, on_frame, on_closed };

int peer_query_start(struct peer_query *q, struct channel_loop *channels, const char *peer,
                     const char *own, const char *token, uint32_t node, uint32_t wait_ms,
                     void (*done)(void *owner, const struct err *err,
                                  const struct peer_answer *answer),
                     void *owner, struct err *err)
{
    struct address address;
    int status = address_parse(peer, strlen(peer), &address, err);

    if (status)
        return status;
    *q = (struct peer_query){ .node = node,
                              .hello = { .version_min = PROTO_VERSION_MIN,
                                         .version_max = PROTO_VERSION_MAX,
                                         .role = "watcher",
                                         .shard = MESSAGE_SHARD_LISTENER,
                                         .name = "psd" },
                              .until_ms = clock_mono_ms() + wait_ms,
                              .done = done,
                              .owner = owner };
    snprintf(q->peer, sizeof q->peer, "%s", peer);
    snprintf(q->own, sizeof q->own, "%s", own);
    snprintf(q->hello.token, sizeof q->hello.token, "%.127s", token);
    status = connector_new(channels, &address, &events, q, &q->connector);
    if (status) {
        q->connector = NULL;
        return err_set(err, status, "%.128s: %s", peer, connector_why(status));
    }
    return 0;
}

void peer_query_tick(struct peer_query *q, uint64_t now_ms)
{
    if (peer_query_is_running(q) && now_ms >= q->until_ms)
        fail(q, -ETIMEDOUT, status_text(-ETIMEDOUT));
}

void peer_query_drop(struct peer_query *q)
{
    connector_drop(q->connector);
    q->connector = NULL;
    bytes_deinit(&q->out);
}
