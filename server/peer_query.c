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

static int send_all(int fd, const uint8_t *bytes, size_t n_bytes, uint64_t until_ms)
{
    while (n_bytes) {
        const ssize_t n = send(fd, bytes, n_bytes, MSG_NOSIGNAL);
        int status = n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;

        if (n > 0) {
            bytes += n;
            n_bytes -= (size_t)n;
        } else if (!status) {
            status = await(fd, POLLOUT, until_ms);
        }
        if (status)
            return status;
    }
    return 0;
}

/* Appends until n_bytes are there. */
static int receive(int fd, struct bytes *in, size_t n_bytes, uint64_t until_ms)
{
    while (bytes_len(in) < n_bytes) {
        const size_t missing = n_bytes - bytes_len(in);
        uint8_t *space = bytes_reserve(in, missing);
        ssize_t n;
        int status;

        if (!space)
            return -ENOMEM;
        status = await(fd, POLLIN, until_ms);
        if (status)
            return status;
        n = recv(fd, space, missing, 0);
        if (n == 0)
            return -ECONNRESET;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        bytes_commit(in, n > 0 ? (size_t)n : 0);
    }
    return 0;
}

static int read_reply(int fd, struct bytes *in, uint64_t until_ms, struct hello_reply *ret)
{
    struct frame_header header;
    int status = receive(fd, in, FRAME_HEADER_BYTES, until_ms);

    if (!status)
        status = frame_decode(bytes_front(in), REPLY_BYTES_MAX, &header);
    if (!status && header.type != FRAME_HELLO_REPLY)
        status = PS_EPROTO;
    if (!status)
        status = receive(fd, in, frame_bytes(&header), until_ms);
    if (!status)
        status = frame_verify(bytes_front(in), &header);
    return status
               ? status
               : message_read_hello_reply(&header, bytes_front(in) + FRAME_HEADER_BYTES, ret);
}

static int greet(int fd, const struct peer_query *asked, uint64_t until_ms,
                 struct hello_reply *ret)
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
        status = send_all(fd, bytes_front(&bytes), bytes_len(&bytes), until_ms);
    bytes_consume(&bytes, bytes_len(&bytes));
    if (!status)
        status = read_reply(fd, &bytes, until_ms, ret);
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

int peer_query_ask(const struct peer_query *asked, struct peer_answer *ret, struct err *err)
{
    const uint64_t until_ms = clock_mono_ms() + asked->wait_ms;
    struct hello_reply reply = { 0 };
    struct sockaddr_storage at;
    int fd = -1, status = address_resolve("peer", asked->peer, &at, err);

    *ret = (struct peer_answer){ 0 };
    if (status)
        return status;
    status = dial(&at, until_ms, &fd);
    if (!status) {
        status = greet(fd, asked, until_ms, &reply);
        close(fd);
    }
    if (status)
        return err_set(err, status, "%.128s: %s", asked->peer, status_text(status));
    return read_answer(asked, &reply, ret, err);
}
