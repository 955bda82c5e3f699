/*
 * A link from inside: what it holds, and the moves that every other part of it makes: change
 * the phase, send, lose the connection, give up.
 */
#ifndef WORKER_CLIENT_LINK_STATE_H
#define WORKER_CLIENT_LINK_STATE_H

#include "worker/client/backlog.h"
#include "worker/client/dial.h"
#include "worker/client/link_owner.h"
#include "worker/client/names.h"

#define LINK_GREET_MS 5000u /* for each step from TCP to ready, and for a farewell */

/* link.h draws them. */
enum link_phase {
    LINK_AWAY,
    LINK_DIALING,
    LINK_GREETING,
    LINK_JOINING,
    LINK_NAMING,
    LINK_READY,
    LINK_LEAVING,
    LINK_OVER
};

struct link {
    struct channel_hub *hub;          /* borrowed */
    const struct link_events *events; /* borrowed, static */
    void *owner;                      /* borrowed */
    struct link_config config;
    enum link_phase phase;
    struct dial *dial;        /* owned; NULL: no connection */
    uint32_t frame_max_bytes; /* what the shard takes */
    bool was_ready, rejoins;  /* the latter until the new incarnation is ready */
    uint64_t now_ms, phase_since_ms, away_since_ms, next_try_ms, next_notice_ms;
    uint32_t n_attempts;        /* since something was answered */
    char why[MESSAGE_TEXT_MAX]; /* the last connection ended */

    uint64_t last_request_id, greet_id, beat_id; /* 0: not asked */
    uint64_t beat_due_ms, beat_sent_ms;
    uint32_t lease_ms;
    struct join_reply joined;
    struct names names;
    struct backlog backlog;
    /* The first push waits, or the one before it was answered, or the shard came back with that
     * push under way: once, for a shard that never answers it may come back for ever. */
    uint64_t push_since_ms;
    bool push_again; /* the latter */
    uint64_t push_told_ms, pull_told_ms;
    struct parcel *pull;      /* owned; NULL: none under way */
    struct pull_reply answer; /* scratch, as it is large */
    struct buf body;          /* scratch: decompressed */
};

void link_state_set(struct link *l, enum link_phase phase);

/* Drops the connection, if there is one. */
void link_state_hang_up(struct link *l);

/* A sentence for people that begins with "shard 3 at host:port ". */
void link_state_notice(struct link *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The connection is no good: another follows. */
void link_state_lose(struct link *l, const char *why);

/* Gives up; tells the owner. */
void link_state_over(struct link *l, int status, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Farewell said, or not needed. */
void link_state_left(struct link *l);

/* May another try succeed where this was refused without being judged? */
bool link_state_is_passing(int status);

/* The shard refused `what`: loses the connection or gives up. */
void link_state_refuse(struct link *l, const char *what, int status, const char *text);

/* Sends what a message_write_*() made with this status; takes the frame. A failure loses the
 * connection, and a frame beyond the shard's limit is the end. */
void link_state_send(struct link *l, const char *what, int status, struct buf *frame);

#endif
