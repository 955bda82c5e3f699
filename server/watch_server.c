#include "server/watch_server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "proto/message_replication.h"

#define WATCH_BYTES_MAX 256u /* of a request's head */
#define ADDRESS_PLACES (WATCH_SERVER_CONNECTIONS_MAX / 16)

/* A watcher whose answer is not due. */
struct waiter {
    struct waiter *next;
    struct connection *connection; /* borrowed; on_closed() comes before it goes */
    uint64_t request_id, above;
    uint64_t due_ms; /* the loop's */
};

struct watch_server {
    struct watch_server_config config;
    struct channel_loop channels;
    struct connection_set connections;
    struct waiter *waiters;   /* owned; the newest first */
    struct watch_reply reply; /* scratch, as it is large */
    uint64_t n_requests, n_evicted;
};

/* --- answers --- */

static int send_reply(struct watch_server *w, struct connection *c, uint64_t request_id)
{
    struct bytes frame = { 0 };
    int status = message_write_watch_reply(&frame, request_id, &w->reply);

    if (!status)
        return connection_send(c, &frame);
    bytes_deinit(&frame);
    return status;
}

static int answer(struct watch_server *w, struct connection *c, uint64_t request_id)
{
    w->reply.status = 0;
    w->reply.text[0] = '\0';
    group_view_get(w->config.groups, &w->reply.groups);
    return send_reply(w, c, request_id);
}

static int refuse(struct watch_server *w, struct connection *c, uint64_t request_id, int reason)
{
    w->reply = (struct watch_reply){ .status = reason };
    snprintf(w->reply.text, sizeof w->reply.text, "%s",
             reason == -EBUSY ? "this connection waits for an answer already"
                              : status_text(reason));
    return send_reply(w, c, request_id);
}

/* --- who waits --- */

static bool is_waiting(const struct watch_server *w, const struct connection *c)
{
    for (const struct waiter *waiter = w->waiters; waiter; waiter = waiter->next)
        if (waiter->connection == c)
            return true;
    return false;
}

static void park(struct watch_server *w, struct connection *c, uint64_t request_id,
                 const struct watch *asked) ON_MAIN
{
    uint64_t now_ms = uv_now(w->config.loop);
    uint32_t wait_ms =
        asked->wait_ms < WATCH_SERVER_WAIT_MS_MAX ? asked->wait_ms : WATCH_SERVER_WAIT_MS_MAX;
    struct waiter *waiter = memory_alloc(sizeof *waiter);

    *waiter = (struct waiter){ .next = w->waiters,
                               .connection = c,
                               .request_id = request_id,
                               .above = asked->above,
                               .due_ms = now_ms + wait_ms };
    w->waiters = waiter;
}

/* The one at *at. A connection that cannot be written to ends later, in its own callback. */
static void answer_waiter(struct watch_server *w, struct waiter **at) ON_MAIN
{
    struct waiter *waiter = *at;
    struct connection *c = waiter->connection;
    uint64_t request_id = waiter->request_id;
    int status;

    *at = waiter->next;
    free(waiter);
    status = answer(w, c, request_id);
    if (status)
        connection_fail(c, status);
}

/* Those who know less than this, and those whose time is over. */
static void answer_due(struct watch_server *w, uint64_t number, uint64_t now_ms) ON_MAIN
{
    struct waiter **at = &w->waiters;

    while (*at) {
        if (number > (*at)->above || now_ms >= (*at)->due_ms)
            answer_waiter(w, at);
        else
            at = &(*at)->next;
    }
}

static void on_change(void *arg)
{
    struct watch_server *w = arg;

    enter_main();
    answer_due(w, group_view_number(w->config.groups), uv_now(w->config.loop));
}

/* --- the connections' events --- */

static int on_request(void *owner, struct request *r)
{
    struct watch_server *w = owner;
    struct connection *c = r->connection;
    uint64_t request_id = r->header->request_id;
    struct watch asked;
    int status;

    enter_main();
    if (r->header->type != FRAME_WATCH)
        return PS_EPROTO;
    w->n_requests++;
    status = message_read_watch(r->header, r->head, &asked);
    if (status)
        return refuse(w, c, request_id, status);
    if (is_waiting(w, c))
        return refuse(w, c, request_id, -EBUSY);
    if (group_view_number(w->config.groups) > asked.above || !asked.wait_ms)
        return answer(w, c, request_id);
    park(w, c, request_id, &asked);
    return 0;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct watch_server *w = owner;
    struct waiter **at = &w->waiters, *waiter;

    (void)why;
    enter_main();
    while (*at && (*at)->connection != c)
        at = &(*at)->next;
    waiter = *at;
    if (!waiter)
        return;
    *at = waiter->next;
    free(waiter);
}

static const struct connection_events watch_server_events = { .on_request = on_request,
                                                              .on_closed = on_closed };

/* --- places --- */

/* host 0: any. */
static struct connection *find_oldest(const struct watch_server *w, uint64_t host,
                                      uint32_t *ret_n)
{
    struct connection *oldest = NULL;

    *ret_n = 0;
    for (struct connection *c = w->connections.first; c; c = c->next) {
        if (c->channel.state == CHANNEL_CLOSING || (host && c->host != host))
            continue;
        oldest = c;
        ++*ret_n;
    }
    return oldest;
}

/* The newest connection, which is the first, has come when there was no place. */
static void make_place(struct watch_server *w) ON_MAIN
{
    uint32_t n, n_own;
    struct connection *oldest = find_oldest(w, 0, &n), *own;

    if (n <= WATCH_SERVER_CONNECTIONS_MAX)
        return;
    own = find_oldest(w, w->connections.first->host, &n_own);
    w->n_evicted++;
    connection_close(n_own > ADDRESS_PLACES ? own : oldest);
}

/* --- for the node --- */

struct watch_server *watch_server_new(const struct watch_server_config *config)
{
    struct watch_server *w = memory_alloc(sizeof *w);
    struct connection_set_config connections = { .channels = &w->channels,
                                                 .frame_max_bytes = WATCH_BYTES_MAX,
                                                 .frame_timeout_ms = config->frame_timeout_ms,
                                                 .welcome = config->welcome,
                                                 .groups = config->groups,
                                                 .events = &watch_server_events,
                                                 .owner = w };

    w->config = *config;
    channel_loop_init(&w->channels, config->loop);
    connection_set_init(&w->connections, &connections);
    group_view_on_change(config->groups, on_change, w);
    return w;
}

void watch_server_free(struct watch_server *w)
{
    if (w)
        channel_loop_deinit(&w->channels);
    free(w);
}

int watch_server_receive(struct watch_server *w, const struct connection_socket *socket,
                         uint64_t request_id, const struct hello *hello)
{
    int status = connection_set_open(&w->connections, socket, request_id, hello, NULL);

    if (!status)
        make_place(w);
    return status;
}

void watch_server_sweep(struct watch_server *w)
{
    uint64_t now_ms = uv_now(w->config.loop);

    connection_set_sweep(&w->connections, now_ms);
    answer_due(w, 0, now_ms);
}

void watch_server_close(struct watch_server *w)
{
    group_view_on_change(w->config.groups, NULL, NULL);
    answer_due(w, 0, UINT64_MAX);
    connection_set_close_all(&w->connections);
    channel_loop_close(&w->channels);
}

void watch_server_count(const struct watch_server *w, struct watch_server_counts *ret)
{
    *ret =
        (struct watch_server_counts){ .n_requests = w->n_requests, .n_evicted = w->n_evicted };
    connection_set_count(&w->connections, &ret->net);
}
