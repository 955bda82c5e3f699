/*
 * The operator's question: a loop of its own that lives as long as the question.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "proto/message.h"
#include "worker/client/dial.h"
#include "worker/client/ps.h"

struct question {
    uv_loop_t loop;
    uv_timer_t timer;
    struct channel_hub hub;
    struct dial *dial; /* owned; NULL once over */
    struct hello hello;
    struct admin admin;
    struct address address;
    uint32_t timeout_ms;
    bool greeted;
    bool over;
    int status;
    struct err *err; /* borrowed */
    char *json;      /* owned until handed out */
};

static void end(struct question *q, int status, const char *text)
{
    if (q->over)
        return;
    q->over = true;
    q->status = status;
    if (status)
        err_set(q->err, status, "psd at %s: %s", q->address.text, text);
    dial_drop(q->dial);
    q->dial = NULL;
    uv_close((uv_handle_t *)&q->timer, NULL);
    channel_hub_close(&q->hub);
}

static void send_frame(struct question *q, int status, struct buf *frame)
{
    if (!status)
        status = dial_send(q->dial, frame);
    buf_deinit(frame);
    if (status)
        end(q, status, dial_why(status));
}

static void on_connected(void *owner)
{
    struct question *q = owner;
    struct buf frame = { 0 };
    int status = message_write_hello(&frame, 1, &q->hello);

    send_frame(q, status, &frame);
}

static int take_hello(struct question *q, const struct frame_header *h, const uint8_t *head)
{
    struct hello_reply *r = mem_alloc(sizeof *r);
    struct buf frame = { 0 };
    int status = message_read_hello_reply(h, head, r);

    if (!status && r->status) {
        end(q, r->status, r->text[0] ? r->text : status_text(r->status));
    } else if (!status) {
        q->greeted = true;
        send_frame(q, message_write_admin(&frame, 2, &q->admin), &frame);
    }
    free(r);
    return status;
}

static int take_admin(struct question *q, const struct frame_header *h, const uint8_t *head,
                      const uint8_t *body)
{
    struct buf scratch = { 0 };
    struct status_reply r;
    size_t n_bytes = 0;
    int status = message_read_status_reply(h, head, &r);

    if (!status)
        status = message_body(h, body, FRAME_MAX_BYTES_DEFAULT, &scratch, &body, &n_bytes);
    if (!status && r.status) {
        end(q, r.status, r.text[0] ? r.text : status_text(r.status));
    } else if (!status) {
        q->json = mem_try_alloc(n_bytes + 1);
        if (q->json && n_bytes)
            memcpy(q->json, body, n_bytes);
        status = q->json ? 0 : -ENOMEM;
    }
    buf_deinit(&scratch);
    if (!status)
        end(q, 0, "");
    return status;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct question *q = owner;
    int status = PS_EPROTO;

    if (header->type == FRAME_HELLO_REPLY && !q->greeted)
        status = take_hello(q, header, head);
    else if (header->type == FRAME_ADMIN_REPLY && q->greeted)
        status = take_admin(q, header, head, body);
    if (status)
        end(q, status, status_text(status));
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct question *q = owner;

    q->dial = NULL;
    end(q, why, dial_why(why));
}

static void on_timeout(uv_timer_t *timer)
{
    struct question *q = CONTAINER_OF(timer, struct question, timer);
    char text[64];

    snprintf(text, sizeof text, "no answer for %" PRIu32 " ms", q->timeout_ms);
    end(q, PS_EDEADLINE, text);
}

static const struct dial_events dial_events = { on_connected, on_frame, on_closed };

static int ask(struct question *q)
{
    int status = uv_loop_init(&q->loop);

    if (status)
        return err_set(q->err, status, "psd at %s: %s", q->address.text, status_text(status));
    channel_hub_init(&q->hub, &q->loop);
    uv_timer_init(&q->loop, &q->timer);
    uv_timer_start(&q->timer, on_timeout, q->timeout_ms, 0);
    status = dial_new(&q->hub, &q->address, &dial_events, q, &q->dial);
    if (status)
        end(q, status, dial_why(status));
    uv_run(&q->loop, UV_RUN_DEFAULT);
    uv_loop_close(&q->loop);
    channel_hub_deinit(&q->hub);
    return q->status;
}

/* Writing to a socket that the server has closed is to fail, not to kill the program. */
static int ask_without_sigpipe(struct question *q)
{
    const struct timespec now = { 0 };
    sigset_t pipe_only, before;
    int status;

    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    status = ask(q);
    while (sigtimedwait(&pipe_only, NULL, &now) > 0)
        ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static bool set_text(char *dst, size_t n_bytes, const char *src)
{
    size_t n = src ? strlen(src) : 0;

    if (n >= n_bytes)
        return false;
    if (n)
        memcpy(dst, src, n);
    return true;
}

int ps_admin(const char *server, const char *token, const char *command, const char *argument,
             uint32_t timeout_ms, char **ret_json, struct err *err)
{
    struct question *q = mem_alloc(sizeof *q);
    int status = address_parse(server, strlen(server), &q->address, err);

    q->err = err;
    q->timeout_ms = timeout_ms;
    q->hello.version_min = PROTO_VERSION_MIN;
    q->hello.version_max = PROTO_VERSION_MAX;
    q->hello.shard = MESSAGE_SHARD_DOOR;
    set_text(q->hello.role, sizeof q->hello.role, "operator");
    if (!status && (!set_text(q->hello.token, sizeof q->hello.token, token) ||
                    !set_text(q->admin.command, sizeof q->admin.command, command) ||
                    !set_text(q->admin.argument, sizeof q->admin.argument, argument)))
        status = err_set(err, -EINVAL, "token, command or argument is too long");
    if (!status)
        status = ask_without_sigpipe(q);
    if (!status)
        *ret_json = q->json;
    else
        free(q->json);
    free(q);
    return status;
}
