/*
 * The chain of callbacks:
 *
 *     connector_new -> [on_resolved] -> try_next -> on_connected -> [on_sealed ...] -> open_channel -> channel events
 *                                     ^            | refused, and more addresses
 *                                     +- on_tcp_closed
 */
#include "proto/connector.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/status.h"
#include "proto/channel.h"

#define KEEPALIVE_S 10
#define FIRST_FD_MAX 4096 /* a loop's first descriptors mostly are below */
#define BACKOFF_MIN_MS 50u
#define BACKOFF_MAX_MS 2000u
#define SEALED_BYTES 8192u /* of a read in a TLS handshake */

struct connector {
    struct channel_loop *channels;         /* borrowed */
    const struct connector_events *events; /* borrowed, static */
    void *owner;                           /* borrowed until dropped */
    uint32_t frame_max_bytes;
    bool dropped;
    bool resolving;
    bool open; /* the channel has the stream */
    int why;
    uv_getaddrinfo_t resolve;
    struct addrinfo *found, *next; /* owned list; the one to be tried next */
    uv_tcp_t tcp;
    uv_connect_t connect;
    struct channel channel;
    struct tls_session *tls; /* owned, until the channel has it */
    char *host; /* owned: the name, or the number, that was asked for; NULL: plain */
    uint8_t sealed[SEALED_BYTES];
};

static void try_next(struct connector *d);

uint64_t connector_backoff_ms(uint32_t n_failed, uint64_t seed)
{
    uint32_t n = n_failed < 10 ? n_failed : 10, ms = BACKOFF_MIN_MS << n;

    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    return ms / 2 + (uint64_t)((float)(ms / 2) * hash_unit(hash_mix(seed)));
}

const char *connector_why(int status)
{
    switch (status) {
    case UV_EOF:
        return "the connection was closed";
    case UV_EAI_NONAME:
    case UV_EAI_NODATA:
        return "its host name is not known";
    case UV_EAI_AGAIN:
    case UV_EAI_FAIL:
        return "its host name is not known, and no name server has answered";
    default:
        return status_text(status);
    }
}

bool connector_is_final(int status)
{
    return status == PS_EHTTP || (status <= PS_ETLS && status >= PS_ETLS_LAST);
}

static void finish(struct connector *d)
{
    if (d->found)
        uv_freeaddrinfo(d->found);
    tls_session_free(d->tls);
    free(d->host);
    if (!d->dropped)
        d->events->closed(d->owner, d->why);
    free(d);
}

static void on_tcp_closed(uv_handle_t *handle)
{
    struct connector *d = CONTAINER_OF(handle, struct connector, tcp);

    if (d->next && !d->dropped)
        try_next(d);
    else
        finish(d);
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct connector *d = owner;

    return d->dropped ? UV_ECANCELED : d->events->frame(d->owner, header, head, body);
}

static void on_channel_closed(void *owner, int why)
{
    struct connector *d = owner;

    d->why = why ? why : UV_EOF;
    if (why == PS_EPROTO && d->channel.hears_http)
        d->why = PS_EHTTP;
    else if (why == UV_ENOBUFS) /* no memory for what comes */
        d->why = -ENOMEM;
    finish(d);
}

static const struct channel_events channel_events = { .frame = on_frame,
                                                      .closed = on_channel_closed };

/* The next address cannot do better. */
static void fail(struct connector *d, int status)
{
    d->next = NULL;
    d->why = status;
    if (!uv_is_closing((uv_handle_t *)&d->tcp))
        uv_close((uv_handle_t *)&d->tcp, on_tcp_closed);
}

static void open_channel(struct connector *d)
{
    int status = channel_start(&d->channel, (uv_stream_t *)&d->tcp, d->channels,
                               d->frame_max_bytes, &channel_events, d);

    if (status) {
        fail(d, status);
        return;
    }
    d->open = true;
    channel_set_tls(&d->channel, d->tls);
    d->tls = NULL;
    d->channel.reads_always = true; /* what is sent is bounded by the client's window */
    d->events->connected(d->owner);
}

/* --- the TLS handshake --- */

/* A few KiB, which a new socket takes at once. */
static int send_reply(struct connector *d)
{
    struct bytes *reply = tls_session_reply(d->tls);
    const uv_buf_t bytes = { .base = (char *)reply->bytes + reply->start,
                             .len = bytes_len(reply) };
    int n;

    if (!bytes.len)
        return 0;
    n = uv_try_write((uv_stream_t *)&d->tcp, &bytes, 1);
    if (n < 0 || (size_t)n < bytes.len)
        return n < 0 ? n : UV_ENOBUFS;
    bytes_consume(reply, bytes.len);
    return 0;
}

static void on_sealed_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_space)
{
    struct connector *d = handle->data;

    (void)suggested_bytes;
    *ret_space = uv_buf_init((char *)d->sealed, sizeof d->sealed);
}

/* Goes on with the handshake. The peer speaks first only after our hello: nothing is left behind it. */
static void shake_hands(struct connector *d, const uint8_t *bytes, size_t n_bytes)
{
    int status, sent;

    tls_session_feed(d->tls, bytes, n_bytes);
    status = tls_session_handshake(d->tls);
    sent = send_reply(d);
    if (!status && tls_session_has_more(d->tls))
        status = PS_ETLS;
    if (status == -EAGAIN && !sent)
        return;
    if (!status)
        status = sent;
    uv_read_stop((uv_stream_t *)&d->tcp);
    if (status)
        fail(d, status);
    else
        open_channel(d);
}

static void on_sealed(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *space)
{
    struct connector *d = stream->data;

    if (d->dropped || n_bytes == 0)
        return;
    if (n_bytes < 0)
        fail(d, n_bytes == UV_EOF ? PS_ETLSENDED : (int)n_bytes);
    else
        shake_hands(d, (const uint8_t *)space->base, (size_t)n_bytes);
}

static void begin_tls(struct connector *d)
{
    int status = tls_session_connect(d->channels->tls, d->host, &d->tls);

    d->tcp.data = d;
    if (!status)
        status = uv_read_start((uv_stream_t *)&d->tcp, on_sealed_alloc, on_sealed);
    if (status)
        fail(d, status);
    else
        shake_hands(d, d->sealed, 0);
}

/* --- connecting --- */

static void on_connected(uv_connect_t *connect, int status)
{
    struct connector *d = CONTAINER_OF(connect, struct connector, connect);

    if (!status && !d->dropped) {
        uv_tcp_nodelay(&d->tcp, 1);
        uv_tcp_keepalive(&d->tcp, 1, KEEPALIVE_S);
        if (d->host)
            begin_tls(d);
        else
            open_channel(d);
        return;
    }
    d->why = status;
    if (!uv_is_closing((uv_handle_t *)&d->tcp))
        uv_close((uv_handle_t *)&d->tcp, on_tcp_closed);
}

/*
 * A loop's table has an entry for each descriptor up to the largest, and doubles. If libuv finds no memory for that it
 * ends the process: so we ask for as much before. (Only another thread that takes it in between can still do harm.)
 */
static int probe_table(int fd)
{
    void *probe = memory_try_alloc(2 * ((size_t)fd + 64) * sizeof(void *));

    free(probe);
    return probe ? 0 : -ENOMEM;
}

int connector_loop_init(uv_loop_t *loop)
{
    int status = probe_table(FIRST_FD_MAX);

    return status ? status : uv_loop_init(loop);
}

/* The socket is made, and the loop has space for it. */
static int make_socket(struct connector *d, int family)
{
    int fd, status = uv_tcp_init_ex(d->channels->loop, &d->tcp, (unsigned)family);

    if (status) {
        uv_tcp_init(d->channels->loop, &d->tcp); /* to be closed */
        return status;
    }
    status = uv_fileno((uv_handle_t *)&d->tcp, &fd);
    return status ? status : probe_table(fd);
}

static void start_connect(struct connector *d, const struct sockaddr *address)
{
    int status = make_socket(d, address->sa_family);

    if (!status)
        status = uv_tcp_connect(&d->connect, &d->tcp, address, on_connected);
    if (status) {
        d->why = status;
        uv_close((uv_handle_t *)&d->tcp, on_tcp_closed);
    }
}

static void try_next(struct connector *d)
{
    const struct sockaddr *address = d->next->ai_addr;

    d->next = d->next->ai_next;
    start_connect(d, address);
}

static void on_resolved(uv_getaddrinfo_t *resolve, int status, struct addrinfo *found)
{
    struct connector *d = CONTAINER_OF(resolve, struct connector, resolve);

    d->resolving = false;
    d->found = d->next = found;
    d->why = status ? status : UV_EAI_NONAME;
    if (d->next && !d->dropped)
        try_next(d);
    else
        finish(d);
}

static int resolve_name(struct connector *d, const struct address *address)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP };

    d->resolving = true;
    return uv_getaddrinfo(d->channels->loop, &d->resolve, on_resolved, address->host,
                          address->port, &hints);
}

static char *copy_host(const char *host)
{
    char *copy = memory_try_alloc(strlen(host) + 1);

    return copy ? strcpy(copy, host) : NULL;
}

int connector_new(struct channel_loop *channels, const struct address *address,
                  const struct connector_events *events, void *owner, struct connector **ret)
{
    struct connector *d = memory_try_alloc(sizeof *d);
    int port = (int)strtol(address->port, NULL, 10), status;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (!d)
        return -ENOMEM;
    d->channels = channels;
    d->events = events;
    d->owner = owner;
    d->frame_max_bytes = FRAME_MAX_BYTES_DEFAULT;
    d->host = channels->tls ? copy_host(address->host) : NULL;
    if (channels->tls && !d->host) {
        free(d);
        return -ENOMEM;
    }
    if (uv_ip4_addr(address->host, port, &v4) == 0) {
        start_connect(d, (const struct sockaddr *)&v4);
    } else if (uv_ip6_addr(address->host, port, &v6) == 0) {
        start_connect(d, (const struct sockaddr *)&v6);
    } else {
        status = resolve_name(d, address);
        if (status) {
            free(d->host);
            free(d);
            return status;
        }
    }
    *ret = d;
    return 0;
}

void connector_set_frame_max(struct connector *d, uint32_t n_bytes)
{
    d->frame_max_bytes = n_bytes;
}

struct channel *connector_channel(struct connector *d)
{
    return &d->channel;
}

/* Ends both directions at once: what has not been written is not to keep the channel
 * waiting for a peer that is stuck. */
static void abort_channel(struct connector *d)
{
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&d->tcp, &fd) == 0)
        shutdown(fd, SHUT_RDWR);
    channel_fail(&d->channel, UV_ECANCELED);
}

void connector_drop(struct connector *d)
{
    if (!d || d->dropped)
        return;
    d->dropped = true;
    if (d->resolving)
        uv_cancel((uv_req_t *)&d->resolve);
    else if (d->open)
        abort_channel(d);
    else if (!uv_is_closing((uv_handle_t *)&d->tcp))
        uv_close((uv_handle_t *)&d->tcp, on_tcp_closed);
}
