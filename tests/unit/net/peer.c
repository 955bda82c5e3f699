#include "tests/unit/net/peer.h"

void peer_turn(struct peer *p)
{
    struct pollfd poll_fd = { .fd = p->fd, .events = POLLIN };

    uv_run(p->loop, UV_RUN_NOWAIT);
    (void)poll(&poll_fd, 1, 1);
}

void peer_send_bytes(struct peer *p, const uint8_t *bytes, size_t n_bytes)
{
    while (n_bytes) {
        ssize_t n = send(p->fd, bytes, n_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0) {
            assert(errno == EAGAIN);
            peer_turn(p);
            continue;
        }
        bytes += n;
        n_bytes -= (size_t)n;
    }
}

void peer_send(struct peer *p, struct bytes *frame)
{
    peer_send_bytes(p, bytes_front(frame), bytes_len(frame));
    bytes_deinit(frame);
}

/* Looks for a whole frame in what has come. */
static bool peer_find_frame(struct peer *p)
{
    int status;

    if (bytes_len(&p->in) < FRAME_HEADER_BYTES)
        return false;
    status = frame_decode(bytes_front(&p->in), FRAME_MAX_BYTES_DEFAULT, &p->header);
    assert(status == 0);
    p->frame_bytes = frame_bytes(&p->header);
    if (bytes_len(&p->in) < p->frame_bytes)
        return false;
    status = frame_verify(bytes_front(&p->in), &p->header);
    assert(status == 0);
    p->head = bytes_front(&p->in) + FRAME_HEADER_BYTES;
    p->body = p->head + p->header.head_bytes;
    return true;
}

bool peer_receive(struct peer *p)
{
    ssize_t n;

    bytes_consume(&p->in, p->frame_bytes);
    p->frame_bytes = 0;
    while (!peer_find_frame(p)) {
        uint8_t *space = bytes_reserve(&p->in, 1 << 16);

        assert(space);
        peer_turn(p);
        n = recv(p->fd, space, 1 << 16, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return false;
        assert(n > 0 || errno == EAGAIN);
        if (n > 0)
            bytes_commit(&p->in, (size_t)n);
    }
    return true;
}

void peer_close(struct peer *p)
{
    close(p->fd);
    bytes_deinit(&p->in);
}
