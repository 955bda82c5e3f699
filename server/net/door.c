/*
 * The chain, in the order of a guest's life:
 *
 *     on_connection -> greeting -> on_hello -> door_judge -> events.guest, or turn_away
 */
#include "server/net/door.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "server/net/greeting.h"

#define BACKLOG 512
#define SWEEP_MS 50u

struct door {
    struct door_config config;
    uv_tcp_t tcp;
    uv_timer_t timer;
    struct greeting *first; /* owned, as long as they are open */
    struct door_counts counts;
    char address[ADDRESS_TEXT_MAX];
    uint32_t n_handles; /* tcp and timer that have still to close */
    enum { DOOR_OPEN, DOOR_CLOSING } state;
};

/* Takes as long for a wrong token as for a right one. */
static bool token_matches(const char *ours, const char *theirs)
{
    char a[sizeof((struct hello *)0)->token] = { 0 }, b[sizeof a] = { 0 };
    unsigned difference = 0;

    snprintf(a, sizeof a, "%s", ours);
    snprintf(b, sizeof b, "%s", theirs);
    for (size_t i = 0; i < sizeof a; i++)
        difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

static int refuse(struct hello_reply *reply, int status, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static int refuse(struct hello_reply *reply, int status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(reply->text, sizeof reply->text, fmt, args);
    va_end(args);
    reply->status = status;
    return status;
}

/* Does such a role go to such a place? */
static int judge_place(const struct door_config *config, const struct hello *hello,
                       struct hello_reply *reply)
{
    bool to_door = hello->shard == MESSAGE_SHARD_DOOR;

    if (strcmp(hello->role, "operator") == 0)
        return to_door ? 0
                       : refuse(reply, PS_EGREETING,
                                "role operator: greets the door, not shard %u", hello->shard);
    if (strcmp(hello->role, "worker") != 0 && strcmp(hello->role, "reader") != 0)
        return refuse(reply, PS_EGREETING,
                      "role: found \"%s\", expected worker, reader or operator", hello->role);
    if (!to_door && hello->shard >= config->map->shards_per_node)
        return refuse(reply, PS_EGREETING, "shard: found %u, this node has 0 to %u",
                      hello->shard, config->map->shards_per_node - 1);
    return 0;
}

int door_judge(const struct door_config *config, const struct hello *hello,
               struct hello_reply *reply)
{
    *reply = (struct hello_reply){ .version = PROTO_VERSION_MAX };
    if (hello->version_min > PROTO_VERSION_MAX || hello->version_max < PROTO_VERSION_MIN)
        return refuse(reply, PS_EVERSION,
                      "protocol versions %u to %u are offered, this node speaks %u to %u",
                      hello->version_min, hello->version_max, PROTO_VERSION_MIN,
                      PROTO_VERSION_MAX);
    if (config->token[0] && !token_matches(config->token, hello->token))
        return refuse(reply, PS_EGREETING,
                      hello->token[0] ? "token: a wrong one (--token-file)"
                                      : "token: none given (--token-file)");
    if (hello->map_id && hello->map_id != config->map->map_id)
        return refuse(
            reply, PS_ECLUSTER,
            "map of the cluster: found %016llx, %s has %016llx: give every node the same "
            "--cluster and --shards",
            (unsigned long long)hello->map_id, config->map->nodes[config->map->node],
            (unsigned long long)config->map->map_id);
    return judge_place(config, hello, reply);
}

/* A reply that says no, then the end. */
static void turn_away(struct door *d, struct greeting *g, const struct hello_reply *reply)
{
    struct buf frame = { 0 };

    d->counts.refused++;
    d->config.events->refused(d->config.owner, g->peer, reply->status, reply->text);
    if (message_write_hello_reply(&frame, g->request_id, reply)) {
        buf_deinit(&frame);
        greeting_close(g);
        return;
    }
    greeting_answer(g, &frame);
    g->since_ms = uv_now(d->config.loop);
}

static void show_map(struct door *d, struct greeting *g)
{
    struct hello_reply reply = *d->config.map;
    struct buf frame = { 0 };

    if (message_write_hello_reply(&frame, g->request_id, &reply)) {
        buf_deinit(&frame);
        greeting_close(g);
        return;
    }
    greeting_answer(g, &frame);
    g->since_ms = uv_now(d->config.loop);
}

/* Owner's guest from here on. */
static void let_in(struct door *d, struct greeting *g, struct hello_reply *reply)
{
    uint64_t request_id = g->request_id;
    struct hello hello = g->hello;
    int fd, status;

    status = greeting_take_fd(g, &fd);
    if (status) {
        refuse(reply, status, "%s", status_text(status));
        turn_away(d, g, reply);
        return;
    }
    status = d->config.events->guest(d->config.owner, fd, request_id, &hello);
    if (status) {
        d->counts.refused++;
        d->config.events->refused(d->config.owner, g->peer, status, status_text(status));
        close(fd);
    }
}

static void on_judged_well(struct door *d, struct greeting *g, struct hello_reply *reply)
{
    bool is_operator = strcmp(g->hello.role, "operator") == 0;

    if (!is_operator && g->hello.shard == MESSAGE_SHARD_DOOR) {
        show_map(d, g);
    } else if (!is_operator &&
               d->config.events->n_inside(d->config.owner) >= d->config.connections_max) {
        refuse(reply, -EMFILE, "connections: %llu are open, which is all of --connections-max",
               (unsigned long long)d->config.connections_max);
        turn_away(d, g, reply);
    } else {
        let_in(d, g, reply);
    }
}

static void on_hello(void *owner, struct greeting *g, int status, const char *sentence)
{
    struct door *d = owner;
    struct hello_reply reply = { .version = PROTO_VERSION_MAX };

    enter_main();
    if (status == PS_EGREETING) {
        refuse(&reply, status, "%s", sentence);
        turn_away(d, g, &reply);
    } else if (status) {
        d->counts.malformed++;
        d->config.events->refused(d->config.owner, g->peer, status, status_text(status));
        greeting_close(g);
    } else if (door_judge(&d->config, &g->hello, &reply)) {
        turn_away(d, g, &reply);
    } else {
        on_judged_well(d, g, &reply);
    }
}

static void on_greeting_closed(void *owner, struct greeting *g)
{
    struct door *d = owner;

    enter_main();
    if (g->prev)
        g->prev->next = g->next;
    else
        d->first = g->next;
    if (g->next)
        g->next->prev = g->prev;
    d->counts.greetings--;
    d->counts.bytes_in += g->n_in;
    d->counts.bytes_out += g->n_out;
    if (d->state == DOOR_CLOSING && d->n_handles == 0 && !d->first)
        free(d);
}

static const struct greeting_events greeting_events = { on_hello, on_greeting_closed };

static void on_connection(uv_stream_t *listener, int status)
{
    struct door *d = listener->data;
    struct greeting *g = NULL;

    enter_main();
    if (!status)
        status = greeting_accept(listener, &greeting_events, d, &g);
    if (status) { /* out of descriptors, or the guest is gone: the door stays open */
        d->counts.failed_accepts++;
        d->config.events->refused(d->config.owner, "accept", status, status_text(status));
        return;
    }
    g->since_ms = uv_now(d->config.loop);
    g->next = d->first;
    if (g->next)
        g->next->prev = g;
    d->first = g;
    d->counts.accepted++;
    d->counts.greetings++;
    if (d->counts.greetings + d->config.events->n_inside(d->config.owner) >
        d->config.connections_max + DOOR_GREETINGS_SPARE) {
        d->counts.refused++;
        greeting_close(g);
    }
}

/* Whoever takes too long, over its hello or over reading its refusal, is hung up on. */
static void on_sweep(uv_timer_t *timer)
{
    struct door *d = timer->data;
    uint64_t now_ms = uv_now(d->config.loop);

    enter_main();
    for (struct greeting *g = d->first; g; g = g->next) {
        if (g->state == GREETING_CLOSING || now_ms - g->since_ms <= d->config.greeting_ms)
            continue;
        if (g->state == GREETING_READING) {
            d->counts.slow++;
            d->config.events->refused(d->config.owner, g->peer, -ETIMEDOUT,
                                      "no hello within --greeting-timeout");
        }
        greeting_close(g);
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct door *d = handle->data;

    if (--d->n_handles == 0 && !d->first)
        free(d);
}

static int tell_why(const struct door *d, int status, struct err *err)
{
    return err_set(err, status, "listen: cannot listen on %s: %s", d->config.listen,
                   status_text(status));
}

/* What bind() says of a port in use libuv tells with the name. */
static int take_address(struct door *d, struct err *err)
{
    struct sockaddr_storage address = { 0 };
    int n_bytes = sizeof address, status;

    status = address_resolve("listen", d->config.listen, &address, err);
    if (status)
        return status;
    status = uv_tcp_bind(&d->tcp, (struct sockaddr *)&address, 0);
    if (!status)
        status = uv_tcp_getsockname(&d->tcp, (struct sockaddr *)&address, &n_bytes);
    if (status)
        return tell_why(d, status, err);
    address_text((struct sockaddr *)&address, d->address);
    return 0;
}

int door_open(const struct door_config *config, struct door **ret_door, struct err *err)
{
    struct door *d = mem_alloc(sizeof *d);
    int status = uv_tcp_init(config->loop, &d->tcp);

    d->config = *config;
    if (status) {
        free(d);
        return err_set(err, status, "listen: %s: %s", config->listen, status_text(status));
    }
    uv_timer_init(config->loop, &d->timer);
    d->tcp.data = d->timer.data = d;
    d->n_handles = 2;
    status = take_address(d, err);
    if (status) {
        door_close(d);
        return status;
    }
    *ret_door = d;
    return 0;
}

int door_listen(struct door *d, struct err *err)
{
    int status = uv_listen((uv_stream_t *)&d->tcp, BACKLOG, on_connection);

    if (!status)
        status = uv_timer_start(&d->timer, on_sweep, SWEEP_MS, SWEEP_MS);
    return status ? tell_why(d, status, err) : 0;
}

const char *door_address(const struct door *d)
{
    return d->address;
}

void door_close(struct door *d)
{
    if (!d || d->state == DOOR_CLOSING)
        return;
    d->state = DOOR_CLOSING;
    for (struct greeting *g = d->first; g; g = g->next)
        greeting_close(g);
    uv_close((uv_handle_t *)&d->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&d->timer, on_handle_closed);
}

void door_count(const struct door *d, struct door_counts *ret)
{
    *ret = d->counts;
}

void door_each_greeting(const struct door *d,
                        void (*each)(void *arg, const char *peer, uint64_t since_ms), void *arg)
{
    for (const struct greeting *g = d->first; g; g = g->next)
        if (g->state == GREETING_READING)
            each(arg, g->peer, g->since_ms);
}
