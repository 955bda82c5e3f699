#include "server/peer_query.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "proto/frame.h"

#define REPLY_BYTES_MAX 131072u /* 64 nodes with two addresses each take less */

/* 0 once the socket is ready. */
static int await(int fd, short events, uint64_t until_ms)
{
    struct pollfd p = { .fd = fd, .events = events };
    uint64_t now_ms = clock_mono_ms();
    int n = now_ms < until_ms ? poll(&p, 1, (int)(until_ms - now_ms)) : 0;

    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    return n ? 0 : -ETIMEDOUT;
}

static int dial(const struct sockaddr_storage *at, uint64_t until_ms, int *ret_fd)
{
    const socklen_t n_bytes =
        at->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), failure = 0;
    socklen_t failure_bytes = sizeof failure;
    int status;

    if (fd < 0)
        return -errno;
    status = connect(fd, (const struct sockaddr *)at, n_bytes) ? -errno : 0;
    if (status == -EINPROGRESS)
        status = await(fd, POLLOUT, until_ms);
    if (!status && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &failure_bytes) == 0)
        status = -failure;
    if (status)
        close(fd);
    else
        *ret_fd = fd;
    return status;
}

/* A socket, and what is spoken on it. */
struct line {
    int fd;
    struct tls_session *tls; /* owned; NULL: plain */
    uint64_t until_ms;
    uint8_t sealed[4096];
};

static int send_all(const struct line *l, const uint8_t *bytes, size_t n_bytes)
{
    while (n_bytes) {
        const ssize_t n = send(l->fd, bytes, n_bytes, MSG_NOSIGNAL);
        int status = n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;

        if (n > 0) {
            bytes += n;
            n_bytes -= (size_t)n;
        } else if (!status) {
            status = await(l->fd, POLLOUT, l->until_ms);
        }
        if (status)
            return status;
    }
    return 0;
}

/* Some of what the socket has; *ret_n may be 0. */
static int receive_some(const struct line *l, uint8_t *dst, size_t max_bytes, size_t *ret_n)
{
    int status = await(l->fd, POLLIN, l->until_ms);
    ssize_t n;

    *ret_n = 0;
    if (status)
        return status;
    n = recv(l->fd, dst, max_bytes, 0);
    if (n == 0)
        return -ECONNRESET;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return -errno;
    *ret_n = n > 0 ? (size_t)n : 0;
    return 0;
}

/* What the session has to say, then more for it to read. */
static int feed(struct line *l)
{
    struct bytes *reply = tls_session_reply(l->tls);
    size_t n = 0;
    int status = send_all(l, bytes_front(reply), bytes_len(reply));

    bytes_consume(reply, bytes_len(reply));
    if (!status)
        status = receive_some(l, l->sealed, sizeof l->sealed, &n);
    if (!status)
        tls_session_feed(l->tls, l->sealed, n);
    return status;
}

static int receive_opened(struct line *l, uint8_t *dst, size_t max_bytes, size_t *ret_n)
{
    int status;

    while ((status = tls_session_read(l->tls, dst, max_bytes, ret_n)) == -EAGAIN) {
        status = feed(l);
        if (status)
            return status;
    }
    return status;
}

static int shake_hands(struct line *l)
{
    struct bytes *reply = tls_session_reply(l->tls);
    int status, sent;

    while ((status = tls_session_handshake(l->tls)) == -EAGAIN) {
        status = feed(l);
        if (status)
            return status;
    }
    sent = send_all(l, bytes_front(reply), bytes_len(reply));
    bytes_consume(reply, bytes_len(reply));
    return status ? status : sent;
}

static int send_hello(struct line *l, const struct bytes *hello)
{
    struct bytes sealed = { 0 };
    int status;

    if (!l->tls)
        return send_all(l, bytes_front(hello), bytes_len(hello));
    status = tls_session_write(l->tls, bytes_front(hello), bytes_len(hello), &sealed);
    if (!status)
        status = send_all(l, bytes_front(&sealed), bytes_len(&sealed));
    bytes_deinit(&sealed);
    return status;
}

/* Appends until n_bytes are there. */
static int receive(struct line *l, struct bytes *in, size_t n_bytes)
{
    while (bytes_len(in) < n_bytes) {
        const size_t missing = n_bytes - bytes_len(in);
        uint8_t *space = bytes_reserve(in, missing);
        size_t n = 0;
        int status;

        if (!space)
            return -ENOMEM;
        status = l->tls ? receive_opened(l, space, missing, &n)
                        : receive_some(l, space, missing, &n);
        if (status)
            return status;
        bytes_commit(in, n);
    }
    return 0;
}

static int read_reply(struct line *l, struct bytes *in, struct hello_reply *ret)
{
    struct frame_header header;
    int status = receive(l, in, FRAME_HEADER_BYTES);

    if (!status)
        status = frame_decode(bytes_front(in), REPLY_BYTES_MAX, &header);
    if (!status && header.type != FRAME_HELLO_REPLY)
        status = PS_EPROTO;
    if (!status)
        status = receive(l, in, frame_bytes(&header));
    if (!status)
        status = frame_verify(bytes_front(in), &header);
    return status
               ? status
               : message_read_hello_reply(&header, bytes_front(in) + FRAME_HEADER_BYTES, ret);
}

static int greet(struct line *l, const struct peer_query *asked, struct hello_reply *ret)
{
    struct hello hello = { .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .role = "watcher",
                           .shard = MESSAGE_SHARD_LISTENER,
                           .name = "psd" };
    struct bytes bytes = { 0 };
    int status;

    snprintf(hello.token, sizeof hello.token, "%s", asked->token);
    status = message_write_hello(&bytes, 1, &hello);
    if (!status)
        status = send_hello(l, &bytes);
    bytes_consume(&bytes, bytes_len(&bytes));
    if (!status)
        status = read_reply(l, &bytes, ret);
    bytes_deinit(&bytes);
    return status;
}

static int read_answer(const struct peer_query *asked, const struct hello_reply *reply,
                       struct peer_answer *ret, struct err *err)
{
    const struct group *group = &reply->groups.items[asked->node];

    if (reply->status)
        return err_set(err, reply->status, "%.128s: %.120s", asked->peer, reply->text);
    if (asked->node >= reply->groups.n)
        return 0;
    ret->term = group->term;
    snprintf(ret->primary, sizeof ret->primary, "%s", group->primary);
    ret->is_primary =
        reply->node < reply->n_nodes && strcmp(group->primary, reply->nodes[reply->node]) == 0;
    ret->is_primary = ret->is_primary || strcmp(group->primary, asked->peer) == 0;
    return 0;
}

/* HOST:PORT without the port, and an IPv6 address without its brackets: what a certificate has. */
static int begin_tls(struct line *l, const struct peer_query *asked)
{
    struct address peer;
    int status = address_parse(asked->peer, strlen(asked->peer), &peer, NULL);

    if (!status)
        status = tls_session_connect(asked->tls, peer.host, &l->tls);
    return status ? status : shake_hands(l);
}

static int converse(struct line *l, const struct peer_query *asked, struct hello_reply *ret)
{
    int status = asked->tls ? begin_tls(l, asked) : 0;

    if (!status)
        status = greet(l, asked, ret);
    tls_session_free(l->tls);
    return status;
}

int peer_query_ask(const struct peer_query *asked, struct peer_answer *ret, struct err *err)
{
    struct line line = { .fd = -1, .until_ms = clock_mono_ms() + PEER_QUERY_MS };
    struct hello_reply reply = { 0 };
    struct sockaddr_storage at;
    int status = address_resolve("peer", asked->peer, &at, err);

    *ret = (struct peer_answer){ 0 };
    if (status)
        return status;
    status = dial(&at, line.until_ms, &line.fd);
    if (!status) {
        status = converse(&line, asked, &reply);
        close(line.fd);
    }
    if (status)
        return err_set(err, status, "%.128s: %s", asked->peer, status_text(status));
    return read_answer(asked, &reply, ret, err);
}
