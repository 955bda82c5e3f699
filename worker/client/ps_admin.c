#include "worker/client/ps_admin.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"
#include "worker/client/ps.h"

#define HELLO_ID 1u
#define COMMAND_ID 2u
#define BEAT_ID 3u
#define CANCEL_MS 50u

/* All queries of one call, on a loop of their own. */
struct asking {
    const struct ps_admin_plan *plan;
    uv_loop_t loop;
    struct channel_loop channels;
    struct hello hello;
    struct admin command, beat;
    struct hello_reply *cluster; /* the query is the handshake; else NULL */
    struct question *questions;  /* owned by ask() */
    uint32_t n_questions, n_open;
    uv_timer_t cancel;
};

struct question {
    struct asking *asking;
    struct ps_admin_node *node;
    uint32_t index;
    uv_timer_t silence, beat;
    struct connector *connector; /* owned; NULL once over */
    struct address address;
    bool greeted, beat_is_out, over;
};

static void close_one(struct asking *a)
{
    if (--a->n_open)
        return;
    channel_loop_close(&a->channels);
    uv_close((uv_handle_t *)&a->cancel, NULL);
}

static void end(struct question *q, int status, const char *text)
{
    struct asking *a = q->asking;

    if (q->over)
        return;
    q->over = true;
    q->node->err.status = 0;
    if (status)
        err_set(&q->node->err, status, "psd at %s: %s", q->address.text, text);
    connector_drop(q->connector);
    q->connector = NULL;
    uv_close((uv_handle_t *)&q->silence, NULL);
    uv_close((uv_handle_t *)&q->beat, NULL);
    close_one(a);
}

/* --- requests --- */

static void send_frame(struct question *q, int status, struct bytes *frame)
{
    if (!status)
        status = channel_send(connector_channel(q->connector), frame);
    bytes_deinit(frame);
    if (status)
        end(q, status, connector_why(status));
}

static void on_connected(void *owner)
{
    struct question *q = owner;
    struct bytes frame = { 0 };
    int status = message_write_hello(&frame, HELLO_ID, &q->asking->hello);

    send_frame(q, status, &frame);
}

static void send_command(struct question *q, uint64_t id, const struct admin *command)
{
    struct bytes frame = { 0 };
    int status = message_write_admin(&frame, id, command);

    send_frame(q, status, &frame);
}

/* One query at a time; a node that does not answer gets no further one. */
static void on_beat(uv_timer_t *timer)
{
    struct question *q = CONTAINER_OF(timer, struct question, beat);

    if (q->beat_is_out)
        return;
    q->beat_is_out = true;
    send_command(q, BEAT_ID, &q->asking->beat);
}

/* --- replies --- */

static void start_command(struct question *q)
{
    const struct ps_admin_plan *plan = q->asking->plan;

    q->greeted = true;
    send_command(q, COMMAND_ID, &q->asking->command);
    if (!q->over && plan->beat_ms)
        uv_timer_start(&q->beat, on_beat, plan->beat_ms, plan->beat_ms);
}

static int receive_hello(struct question *q, const struct frame_header *h, const uint8_t *head)
{
    struct hello_reply *r = memory_try_alloc(sizeof *r);
    int status = r ? message_read_hello_reply(h, head, r) : -ENOMEM;

    if (!status && r->status) {
        end(q, r->status, r->text[0] ? r->text : status_text(r->status));
    } else if (!status && q->asking->cluster) {
        *q->asking->cluster = *r;
        end(q, 0, "");
    } else if (!status) {
        start_command(q);
    }
    free(r);
    return status;
}

/* The text of an answer; NULL: no memory. */
static char *copy_text(const uint8_t *body, size_t n_bytes)
{
    char *text = memory_try_alloc(n_bytes + 1);

    if (text && n_bytes)
        memcpy(text, body, n_bytes);
    return text;
}

static void receive_answer(struct question *q, const struct status_reply *r, char *text)
{
    if (r->status) {
        end(q, r->status, r->text[0] ? r->text : status_text(r->status));
        free(text);
        return;
    }
    q->node->json = text;
    end(q, text ? 0 : -ENOMEM, status_text(-ENOMEM));
}

/* A refused heartbeat also proves that the node lives. */
static void receive_beat(struct question *q, const struct status_reply *r, char *text)
{
    const struct ps_admin_plan *plan = q->asking->plan;

    q->beat_is_out = false;
    if (!r->status && text && plan->on_beat)
        plan->on_beat(plan->arg, q->index, text);
    free(text);
}

static int receive_admin(struct question *q, const struct frame_header *h, const uint8_t *head,
                         const uint8_t *body)
{
    struct bytes scratch = { 0 };
    struct status_reply r;
    size_t n_bytes = 0;
    int status = message_read_status_reply(h, head, &r);

    if (!status)
        status = message_body(&q->asking->channels.zstd, h, body, FRAME_MAX_BYTES_DEFAULT,
                              &scratch, &body, &n_bytes);
    if (!status && h->request_id == BEAT_ID)
        receive_beat(q, &r, copy_text(body, n_bytes));
    else if (!status)
        receive_answer(q, &r, copy_text(body, n_bytes));
    bytes_deinit(&scratch);
    return status;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct question *q = owner;
    int status = PS_EPROTO;

    uv_timer_again(&q->silence);
    if (header->type == FRAME_HELLO_REPLY && !q->greeted)
        status = receive_hello(q, header, head);
    else if (header->type == FRAME_ADMIN_REPLY && q->greeted)
        status = receive_admin(q, header, head, body);
    if (status)
        end(q, status, status_text(status));
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct question *q = owner;

    q->connector = NULL;
    end(q, why, connector_why(why));
}

static void on_silence(uv_timer_t *timer)
{
    struct question *q = CONTAINER_OF(timer, struct question, silence);
    char text[64];

    snprintf(text, sizeof text, "no answer for %" PRIu32 " ms", q->asking->plan->timeout_ms);
    end(q, PS_EDEADLINE, text);
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

/* --- the call --- */

static void start(struct question *q, struct asking *a, struct ps_admin_node *node, uint32_t i)
{
    uint32_t timeout_ms = a->plan->timeout_ms;
    int status;

    *q = (struct question){ .asking = a, .node = node, .index = i };
    status = address_parse(node->server, strlen(node->server), &q->address, &node->err);
    if (status) {
        q->over = true;
        return;
    }
    a->n_open++;
    uv_timer_init(&a->loop, &q->silence);
    uv_timer_init(&a->loop, &q->beat);
    uv_timer_start(&q->silence, on_silence, timeout_ms, timeout_ms);
    status = connector_new(&a->channels, &q->address, &connector_events, q, &q->connector);
    if (status)
        end(q, status, connector_why(status));
}

static void fail_all(struct ps_admin_node *nodes, uint32_t n, int status, const char *text)
{
    for (uint32_t i = 0; i < n; i++)
        err_set(&nodes[i].err, status, "%s", text);
}

static void on_cancel(uv_timer_t *timer)
{
    struct asking *a = CONTAINER_OF(timer, struct asking, cancel);

    if (!a->plan->is_cancelled(a->plan->arg))
        return;
    uv_timer_stop(timer);
    for (uint32_t i = 0; i < a->n_questions; i++)
        end(&a->questions[i], -ECANCELED, "nobody waits for the answer");
}

static void ask(struct asking *a, struct ps_admin_node *nodes, uint32_t n)
{
    struct question *all = memory_try_alloc(n * sizeof *all);
    int status = all ? connector_loop_init(&a->loop) : -ENOMEM;

    if (status) {
        fail_all(nodes, n, status, status_text(status));
        free(all);
        return;
    }
    a->questions = all;
    a->n_questions = n;
    channel_loop_init(&a->channels, &a->loop);
    a->channels.tls = a->plan->tls;
    uv_timer_init(&a->loop, &a->cancel);
    if (a->plan->is_cancelled)
        uv_timer_start(&a->cancel, on_cancel, CANCEL_MS, CANCEL_MS);
    a->n_open = 1; /* keeps the loop until all have begun */
    for (uint32_t i = 0; i < n; i++)
        start(&all[i], a, &nodes[i], i);
    close_one(a);
    uv_run(&a->loop, UV_RUN_DEFAULT);
    uv_loop_close(&a->loop);
    channel_loop_deinit(&a->channels);
    free(all);
}

/* A write to a socket that the server has closed fails, and does not kill the program. */
static void ask_without_sigpipe(struct asking *a, struct ps_admin_node *nodes, uint32_t n)
{
    const struct timespec now = { 0 };
    sigset_t pipe_only, before;

    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ask(a, nodes, n);
    while (sigtimedwait(&pipe_only, NULL, &now) > 0)
        ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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

/* cluster NULL: sends the plan's command. */
static void run(const struct ps_admin_plan *plan, struct hello_reply *cluster,
                struct ps_admin_node *nodes, uint32_t n)
{
    struct asking *a = memory_try_alloc(sizeof *a);

    if (!a) {
        fail_all(nodes, n, -ENOMEM, status_text(-ENOMEM));
        return;
    }
    a->plan = plan;
    a->cluster = cluster;
    a->hello.version_min = PROTO_VERSION_MIN;
    a->hello.version_max = PROTO_VERSION_MAX;
    a->hello.shard = MESSAGE_SHARD_LISTENER;
    set_text(a->hello.role, sizeof a->hello.role, "operator");
    if (set_text(a->hello.token, sizeof a->hello.token, plan->token) &&
        set_text(a->command.command, sizeof a->command.command, plan->command) &&
        set_text(a->command.argument, sizeof a->command.argument, plan->argument) &&
        set_text(a->beat.command, sizeof a->beat.command, plan->beat_command))
        ask_without_sigpipe(a, nodes, n);
    else
        fail_all(nodes, n, -EINVAL, "token, command or argument is too long");
    free(a);
}

void ps_admin_ask(const struct ps_admin_plan *plan, struct ps_admin_node *nodes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        nodes[i].json = NULL;
        nodes[i].err = (struct err){ 0 };
    }
    run(plan, NULL, nodes, n);
}

static int outcome(const struct ps_admin_node *node, struct err *err)
{
    if (node->err.status && err)
        *err = node->err;
    return node->err.status;
}

int ps_admin_find(const struct ps_admin_plan *plan, const char *server, struct hello_reply *ret,
                  struct err *err)
{
    struct ps_admin_node node = { .server = server };

    run(plan, ret, &node, 1);
    return outcome(&node, err);
}

int ps_admin_one(const struct ps_admin_plan *plan, const char *server, char **ret_json,
                 struct err *err)
{
    struct ps_admin_node node = { .server = server };

    ps_admin_ask(plan, &node, 1);
    if (!node.err.status)
        *ret_json = node.json;
    return outcome(&node, err);
}
