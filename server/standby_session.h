/*
 * A standby's connection to its primary's listener, on the main thread: one dial after another until one is welcome,
 * then one question at a time.
 *
 *     IDLE      standby_session_dial()
 *     DIALLING  -> WELCOME, or events.lost
 *     WELCOME   -> events.lost: it ended, made no sense, or was silent for too long after a question
 *
 * No event follows standby_session_drop(), also not from an event that calls it.
 */
#ifndef SERVER_STANDBY_SESSION_H
#define SERVER_STANDBY_SESSION_H

#include "common/address.h"
#include "common/thread_role.h"
#include "proto/channel_loop.h"
#include "proto/message.h"

struct connector;

#define STANDBY_SESSION_SILENCE_MS 30000u /* for an answer: it may have to write a file first */
#define STANDBY_SESSION_DIAL_MS 5000u     /* for a connection and its welcome */

struct standby_session_events {
    /* 0, or a status that ends the session, after standby_session_refuse(). */
    int (*welcome)(void *owner, const struct hello_reply *reply);
    int (*reply)(void *owner, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body);
    void (*lost)(void *owner, const char *why);
};

struct standby_session {
    struct channel_loop channels;
    const struct standby_session_events *events; /* borrowed, static */
    void *owner;                                 /* borrowed */
    enum { SESSION_IDLE, SESSION_DIALLING, SESSION_WELCOME } state;
    struct connector *connector; /* owned; NULL in IDLE */
    struct hello hello;
    struct bytes out; /* a frame being made; empty in between */
    uint64_t request_id;
    bool is_asking;
    bool ended_instead;          /* the peer has ended it, instead of an answer */
    uint64_t asked_ms, heard_ms; /* monotonic; 0: never */
    char refusal[256];           /* why this side ends it */
    bool is_refused;             /* the last dial came to a psd, which did not welcome it, */
    bool is_moved;               /* as it is not the primary, */
    bool has_no_data;            /* nor is any psd that it knows */
    bool is_nobody_there;        /* the last dial was refused: no process listens there */
};

void standby_session_init(struct standby_session *s, uv_loop_t *loop,
                          const struct standby_session_events *events, void *owner) ON_MAIN;

/* In IDLE. events.lost may follow at once. */
void standby_session_dial(struct standby_session *s, const struct address *address,
                          const struct hello *hello) ON_MAIN;

/* In WELCOME: sends s->out, a frame of request s->request_id, which the caller has counted. Not 0: it ends. */
int standby_session_ask(struct standby_session *s) ON_MAIN;

/* Why a frame's status ends the session; returns that status. */
int standby_session_refuse(struct standby_session *s, int status, const char *why) ON_MAIN;

/* A few times a second. */
void standby_session_tick(struct standby_session *s, uint64_t now_ms) ON_MAIN;

void standby_session_drop(struct standby_session *s) ON_MAIN;

/* Drops it, for good; then, when the loop has ended, _deinit. */
void standby_session_close(struct standby_session *s) ON_MAIN;
void standby_session_deinit(struct standby_session *s) ON_MAIN;

#endif
