#include "server/standby_session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"

void standby_session_init(struct standby_session *s, uv_loop_t *loop,
                          const struct standby_session_events *events, void *owner)
{
    *s = (struct standby_session){ .events = events, .owner = owner };
    channel_loop_init(&s->channels, loop);
}

void standby_session_drop(struct standby_session *s)
{
    connector_drop(s->connector);
    s->connector = NULL;
    s->is_asking = false;
    s->state = SESSION_IDLE;
}

static void lose(struct standby_session *s, const char *why) ON_MAIN
{
    standby_session_drop(s);
    s->events->lost(s->owner, why);
}

int standby_session_refuse(struct standby_session *s, int status, const char *why)
{
    snprintf(s->refusal, sizeof s->refusal, "%s", why);
    return status;
}

static int send_out(struct standby_session *s)
{
    int status = channel_send(connector_channel(s->connector), &s->out);

    if (status)
        bytes_deinit(&s->out);
    s->is_asking = true;
    s->asked_ms = clock_mono_ms();
    return status;
}

int standby_session_ask(struct standby_session *s)
{
    return send_out(s);
}

/* Why it refuses. A psd of before there were standbys names the roles that it knows. */
static const char *reason(const struct hello_reply *reply)
{
    static const char unknown_role[] = "role: found \"standby\"";

    if (strncmp(reply->text, unknown_role, sizeof unknown_role - 1) == 0)
        return "it knows no standbys: is it an older psd?";
    return reply->text[0] ? reply->text : status_text(reply->status);
}

static int on_welcome(struct standby_session *s, const struct frame_header *header,
                      const uint8_t *head) ON_MAIN
{
    struct hello_reply *reply = memory_alloc(sizeof *reply);
    int status = header->type == FRAME_HELLO_REPLY
                     ? message_read_hello_reply(header, head, reply)
                     : PS_EPROTO;

    s->is_refused = !status && reply->status;
    s->has_no_data = s->is_refused && reply->status == -ENODATA;
    s->is_moved = s->has_no_data || (s->is_refused && reply->status == PS_EMOVED);
    if (status)
        (void)standby_session_refuse(s, status, "it is no psd that a standby can follow");
    else if (reply->status)
        status = standby_session_refuse(s, reply->status, reason(reply));
    if (!status) {
        s->state = SESSION_WELCOME;
        status = s->events->welcome(s->owner, reply);
    }
    free(reply);
    return status;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct standby_session *s = owner;
    int status;

    enter_main();
    s->heard_ms = clock_mono_ms();
    if (s->state == SESSION_WELCOME && !s->is_asking)
        return standby_session_refuse(s, PS_EPROTO, "it answers what was not asked");
    s->is_asking = false;
    status = s->state == SESSION_WELCOME ? s->events->reply(s->owner, header, head, body)
                                         : on_welcome(s, header, head);
    return s->connector ? status : UV_ECANCELED;
}

static void on_connected(void *owner)
{
    struct standby_session *s = owner;
    int status;

    enter_main();
    status = message_write_hello(&s->out, ++s->request_id, &s->hello);
    if (!status)
        status = send_out(s);
    if (status)
        lose(s, status_text(status));
}

static void on_closed(void *owner, int why)
{
    struct standby_session *s = owner;

    enter_main();
    if (s->state == SESSION_DIALLING && (why == PS_EPROTO || why == PS_ECORRUPT) &&
        !s->refusal[0])
        (void)standby_session_refuse(s, why, "it is no psd: its answer makes no sense");
    s->connector = NULL;
    s->ended_instead = s->state == SESSION_WELCOME && s->is_asking && why == UV_EOF;
    s->is_nobody_there = why == UV_ECONNREFUSED;
    lose(s, s->refusal[0]        ? s->refusal
            : s->is_nobody_there ? "Connection refused: no program listens there"
                                 : connector_why(why));
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

void standby_session_dial(struct standby_session *s, const struct address *address,
                          const struct hello *hello)
{
    int status;

    s->state = SESSION_DIALLING;
    s->hello = *hello;
    s->refusal[0] = '\0';
    s->ended_instead = s->is_nobody_there = s->is_refused = s->is_moved = s->has_no_data =
        false;
    s->asked_ms = clock_mono_ms();
    status = connector_new(&s->channels, address, &connector_events, s, &s->connector);
    if (status) {
        s->connector = NULL;
        lose(s, connector_why(status));
    }
}

void standby_session_tick(struct standby_session *s, uint64_t now_ms)
{
    uint64_t silent_ms = now_ms > s->asked_ms ? now_ms - s->asked_ms : 0;

    if (s->state == SESSION_DIALLING && silent_ms > STANDBY_SESSION_DIAL_MS)
        lose(s, "it does not answer");
    else if (s->is_asking && silent_ms > STANDBY_SESSION_SILENCE_MS)
        lose(s, "it has not answered for 30 s");
}

void standby_session_close(struct standby_session *s)
{
    standby_session_drop(s);
    channel_loop_close(&s->channels);
}

void standby_session_deinit(struct standby_session *s)
{
    channel_loop_deinit(&s->channels);
    bytes_deinit(&s->out);
}
