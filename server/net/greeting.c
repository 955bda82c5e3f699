#include "server/net/greeting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "common/mem.h"
#include "proto/frame.h"

struct answer {
    uv_write_t uv;
    struct greeting *greeting;
    struct buf frame; /* owned */
};

static void on_stillborn(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_closed(uv_handle_t *handle)
{
    struct greeting *g = handle->data;

    g->events->closed(g->owner, g);
    free(g);
}

void greeting_close(struct greeting *g)
{
    if (g->state == GREETING_CLOSING)
        return;
    g->state = GREETING_CLOSING;
    uv_close((uv_handle_t *)&g->tcp, on_closed);
}

/* The rest of the frame, or a little more: what is behind it shows that the guest did not
 * wait. */
static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_room)
{
    struct greeting *g = handle->data;

    (void)suggested_bytes;
    if (g->state == GREETING_ANSWERED)
        g->n_in = 0;
    *ret_room = uv_buf_init((char *)g->in + g->n_in, (unsigned)(sizeof g->in - g->n_in));
}

/* Looks at what has come: -EAGAIN until it is a whole frame. */
static int read_hello(struct greeting *g, const char **ret_sentence)
{
    struct frame_header header;
    size_t n_bytes;
    int status;

    if (!frame_magic_fits(g->in, g->n_in))
        return PS_EPROTO; /* at once: another protocol may greet with less than a header */
    if (g->n_in < FRAME_HEADER_BYTES)
        return -EAGAIN;
    status = frame_decode(g->in, GREETING_BYTES_MAX - FRAME_HEADER_BYTES - FRAME_SUM_BYTES - 1,
                          &header);
    if (status)
        return status;
    n_bytes = frame_bytes(&header);
    if (g->n_in < n_bytes)
        return -EAGAIN;
    status = frame_verify(g->in, &header);
    if (status)
        return status;
    g->request_id = header.request_id;
    *ret_sentence = "the first message is not a hello";
    if (header.type != FRAME_HELLO)
        return PS_EGREETING;
    *ret_sentence = "bytes behind the hello: wait for the reply first";
    if (g->n_in > n_bytes || header.body_bytes)
        return PS_EGREETING;
    return message_read_hello(&header, g->in + FRAME_HEADER_BYTES, &g->hello);
}

static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *room)
{
    struct greeting *g = stream->data;
    const char *sentence = "";
    int status;

    (void)room;
    if (n_bytes < 0) {
        greeting_close(g);
        return;
    }
    if (g->state != GREETING_READING || n_bytes == 0)
        return;
    g->n_in += (size_t)n_bytes;
    status = read_hello(g, &sentence);
    if (status != -EAGAIN)
        g->events->hello(g->owner, g, status, sentence);
}

int greeting_accept(uv_stream_t *listener, const struct greeting_events *events, void *owner,
                    struct greeting **ret_greeting)
{
    struct greeting *g = mem_alloc(sizeof *g);
    struct sockaddr_storage address = { 0 };
    int n_bytes = sizeof address, status;

    status = uv_tcp_init(listener->loop, &g->tcp);
    if (status) {
        free(g);
        return status;
    }
    g->events = events;
    g->owner = owner;
    g->tcp.data = g;
    status = uv_accept(listener, (uv_stream_t *)&g->tcp);
    if (!status && uv_tcp_getpeername(&g->tcp, (struct sockaddr *)&address, &n_bytes))
        address.ss_family = AF_UNSPEC; /* gone already; reading will say so */
    address_text((struct sockaddr *)&address, g->peer);
    if (!status)
        status = uv_read_start((uv_stream_t *)&g->tcp, on_alloc, on_read);
    if (status) {
        uv_close((uv_handle_t *)&g->tcp, on_stillborn);
        return status;
    }
    *ret_greeting = g;
    return 0;
}

static void on_shut_down(uv_shutdown_t *req, int status)
{
    (void)req;
    (void)status; /* the guest's end of stream or the door's patience ends it */
}

static void on_written(uv_write_t *uv, int status)
{
    struct answer *answer = CONTAINER_OF(uv, struct answer, uv);
    struct greeting *g = answer->greeting;

    buf_deinit(&answer->frame);
    free(answer);
    if (g->state == GREETING_CLOSING)
        return;
    if (status || uv_shutdown(&g->shutdown, (uv_stream_t *)&g->tcp, on_shut_down))
        greeting_close(g);
}

void greeting_answer(struct greeting *g, struct buf *frame)
{
    struct answer *answer = mem_alloc(sizeof *answer);
    uv_buf_t bytes = uv_buf_init((char *)buf_front(frame), (unsigned)buf_len(frame));

    answer->greeting = g;
    answer->frame = *frame;
    *frame = (struct buf){ 0 };
    g->state = GREETING_ANSWERED;
    g->n_out += bytes.len;
    if (uv_write(&answer->uv, (uv_stream_t *)&g->tcp, &bytes, 1, on_written)) {
        buf_deinit(&answer->frame);
        free(answer);
        greeting_close(g);
    }
}

int greeting_take_fd(struct greeting *g, int *ret_fd)
{
    uv_os_fd_t fd;
    int status = uv_fileno((uv_handle_t *)&g->tcp, &fd), copy;

    if (status)
        return status;
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return -errno;
    greeting_close(g);
    *ret_fd = copy;
    return 0;
}
