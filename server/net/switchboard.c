#include "server/net/switchboard.h"

#include <errno.h>

#include "common/status.h"

/* Has the peer broken the framing, so that nothing after it can be read? */
static bool is_malformed(int why)
{
    return why == PS_EPROTO || why == PS_ECORRUPT || why == PS_ETOOBIG || why == PS_ECOUNT;
}

static int on_request(void *owner, struct connection *c, const struct frame_header *header,
                      const uint8_t *head, const uint8_t *body)
{
    struct switchboard *s = owner;

    return s->config.events->request(s->config.owner, c, header, head, body);
}

static void on_part(void *owner, struct connection *c, const struct frame_header *header,
                    const uint8_t *head, const uint8_t *body, size_t n_bytes)
{
    struct switchboard *s = owner;

    if (s->config.events->part)
        s->config.events->part(s->config.owner, c, header, head, body, n_bytes);
}

static void on_written(void *owner, struct connection *c)
{
    struct switchboard *s = owner;

    if (s->config.events->written)
        s->config.events->written(s->config.owner, c);
}

static void unlink_connection(struct switchboard *s, struct connection *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        s->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct switchboard *s = owner;

    unlink_connection(s, c);
    s->gone.bytes_in += c->channel.bytes_in;
    s->gone.bytes_out += c->channel.bytes_out;
    if (is_malformed(why))
        s->gone.malformed++;
    s->config.events->closed(s->config.owner, c, why);
}

static const struct connection_events connection_events = {
    .request = on_request, .part = on_part, .written = on_written, .closed = on_closed
};

void switchboard_init(struct switchboard *s, const struct switchboard_config *config)
{
    *s = (struct switchboard){ .config = *config };
}

static int welcome(struct switchboard *s, struct connection *c, uint64_t request_id)
{
    struct hello_reply reply = *s->config.welcome;
    struct buf frame = { 0 };
    int status;

    reply.version =
        c->hello.version_max < PROTO_VERSION_MAX ? c->hello.version_max : PROTO_VERSION_MAX;
    status = message_write_hello_reply(&frame, request_id, &reply);
    if (status) {
        buf_deinit(&frame);
        return status;
    }
    return connection_send(c, &frame);
}

int switchboard_open(struct switchboard *s, int fd, uint64_t request_id,
                     const struct hello *hello)
{
    struct connection *c;
    int status = connection_new(s->config.hub, fd, s->config.frame_max_bytes, hello,
                                &connection_events, s, &c);

    if (status)
        return status;
    c->next = s->first;
    if (c->next)
        c->next->prev = c;
    s->first = c;
    s->gone.connections_total++;
    status = welcome(s, c, request_id);
    if (status)
        connection_fail(c, status);
    return 0;
}

void switchboard_sweep(struct switchboard *s, uint64_t now_ms)
{
    for (struct connection *c = s->first; c; c = c->next) {
        if (connection_is_slow(c, now_ms, s->config.frame_timeout_ms)) {
            s->gone.slow++;
            connection_fail(c, -ETIMEDOUT);
        }
    }
}

void switchboard_close_all(struct switchboard *s)
{
    for (struct connection *c = s->first; c; c = c->next)
        connection_close(c);
}

void switchboard_count(const struct switchboard *s, struct switchboard_counts *ret)
{
    *ret = s->gone;
    for (const struct connection *c = s->first; c; c = c->next) {
        ret->connections++;
        ret->bytes_in += c->channel.bytes_in;
        ret->bytes_out += c->channel.bytes_out;
    }
}
