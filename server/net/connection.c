#include "server/net/connection.h"

#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/mem.h"

#define KEEPALIVE_S 60u /* finds hosts that are gone without a word */

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct connection *c = owner;

    c->n_frames++;
    return c->events->request(c->owner, c, header, head, body);
}

static void on_part(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body, size_t n_bytes)
{
    struct connection *c = owner;

    if (c->events->part)
        c->events->part(c->owner, c, header, head, body, n_bytes);
}

static void on_written(void *owner)
{
    struct connection *c = owner;

    if (c->events->written)
        c->events->written(c->owner, c);
}

static void on_channel_closed(void *owner, int why)
{
    struct connection *c = owner;

    c->events->closed(c->owner, c, why);
    free(c);
}

static const struct channel_events channel_events = {
    .frame = on_frame, .part = on_part, .written = on_written, .closed = on_channel_closed
};

static void on_stillborn(uv_handle_t *handle)
{
    free(handle->data);
}

static void name_peer(struct connection *c)
{
    struct sockaddr_storage address = { 0 };
    int n_bytes = sizeof address;

    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&address, &n_bytes))
        address.ss_family = AF_UNSPEC;
    address_text((struct sockaddr *)&address, c->peer);
}

/* Fails only before anything is read. */
static int open_socket(struct connection *c, struct channel_hub *hub, int fd,
                       uint32_t frame_max_bytes)
{
    int status = uv_tcp_open(&c->tcp, fd);

    if (status) {
        close(fd);
        return status;
    }
    /* Both are wishes: a socket that knows neither still carries frames. */
    (void)uv_tcp_nodelay(&c->tcp, 1);
    (void)uv_tcp_keepalive(&c->tcp, 1, KEEPALIVE_S);
    name_peer(c);
    return channel_start(&c->channel, (uv_stream_t *)&c->tcp, hub, frame_max_bytes,
                         &channel_events, c);
}

int connection_new(struct channel_hub *hub, int fd, uint32_t frame_max_bytes,
                   const struct hello *hello, const struct connection_events *events,
                   void *owner, struct connection **ret_connection)
{
    struct connection *c = mem_alloc(sizeof *c);
    int status = uv_tcp_init(hub->loop, &c->tcp);

    if (status) {
        close(fd);
        free(c);
        return status;
    }
    c->events = events;
    c->owner = owner;
    c->hello = *hello;
    status = open_socket(c, hub, fd, frame_max_bytes);
    if (status) {
        c->tcp.data = c;
        uv_close((uv_handle_t *)&c->tcp, on_stillborn);
        return status;
    }
    *ret_connection = c;
    return 0;
}

int connection_send(struct connection *c, struct buf *frame)
{
    return channel_send(&c->channel, frame);
}

void connection_hold(struct connection *c)
{
    channel_hold(&c->channel);
}

void connection_release(struct connection *c)
{
    channel_release(&c->channel);
}

void connection_close(struct connection *c)
{
    channel_close(&c->channel);
}

void connection_fail(struct connection *c, int why)
{
    channel_fail(&c->channel, why);
}

static bool stands_still(struct connection_stall *stall, bool is_awaited, uint64_t progress,
                         uint64_t now_ms, uint64_t limit_ms)
{
    if (!is_awaited || !stall->since_ms || stall->progress != progress) {
        stall->since_ms = is_awaited ? now_ms : 0;
        stall->progress = progress;
        return false;
    }
    return now_ms - stall->since_ms > limit_ms;
}

uint64_t connection_reached_bytes(const struct connection *c)
{
    uv_os_fd_t fd;
    int kernels = 0; /* part of them: written, and not acknowledged */

    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) || ioctl(fd, SIOCOUTQ, &kernels))
        kernels = 0;
    return c->channel.bytes_out - channel_unsent_bytes(&c->channel) - (uint64_t)kernels;
}

bool connection_is_slow(struct connection *c, uint64_t now_ms, uint64_t limit_ms)
{
    size_t queue_bytes = channel_unsent_bytes(&c->channel);
    bool is_slow;

    if (c->channel.state == CHANNEL_CLOSING)
        return false;
    is_slow = stands_still(&c->in, channel_mid_frame(&c->channel),
                           c->n_frames + c->channel.n_turns_ended, now_ms, limit_ms);
    return stands_still(&c->out, queue_bytes > 0, c->channel.bytes_out - queue_bytes, now_ms,
                        limit_ms) ||
           is_slow;
}
