/*
 * The phases of a client's link to a shard, what it holds, and how its connection ends. For shard_link.c alone, which
 * draws them in its header.
 */
#ifndef WORKER_CLIENT_LINK_PHASE_H
#define WORKER_CLIENT_LINK_PHASE_H

#include <stdbool.h>

#include "proto/channel.h"
#include "proto/connector.h"
#include "worker/client/io_thread.h"
#include "worker/client/link_types.h"
#include "worker/client/named_pulls.h"
#include "worker/client/pull_queue.h"
#include "worker/client/table_ids.h"

/* Drawn in shard_link.h. */
enum link_phase {
    PHASE_AWAY,
    PHASE_DIALING,
    PHASE_HANDSHAKE,
    PHASE_GREETED,
    PHASE_JOINING,
    PHASE_TABLES,
    PHASE_READY,
    PHASE_LEAVING,
    PHASE_OVER
};

struct shard_link {
    struct channel_loop *channels; /* borrowed */
    struct message_zstd *zstd;     /* borrowed, of requests; NULL: they are not compressed */
    const struct shard_link_events *events; /* borrowed, static */
    void *owner;                            /* borrowed */
    struct shard_link_config config;
    enum link_phase phase;
    struct connector *connector; /* owned; NULL: no connection */
    struct channel *channel;     /* borrowed: the connector's, once it is connected */
    struct io_connection
        *io; /* owned: in place of the connector, on an I/O thread; NULL: none */
    uint32_t frame_max_bytes; /* the shard's limit */
    uint64_t groups_number;   /* the newest that it has named */
    bool was_ready, rejoins;  /* rejoins: until the new incarnation is ready */
    uint64_t now_ms, phase_since_ms, away_since_ms, next_try_ms, next_notice_ms;
    uint32_t n_attempts;        /* since the last reply */
    char why[MESSAGE_TEXT_MAX]; /* the last connection ended */

    uint64_t last_request_id, greet_id, beat_id; /* 0: not asked */
    uint64_t beat_due_ms, beat_sent_ms;
    uint64_t heard_ms; /* the last frame came */
    uint32_t lease_ms;
    struct join_reply joined;
    struct table_ids tables;
    struct request_queue unacked;
    /* Since then the first push is unanswered: since it was queued, or the push before it was answered, or the shard
     * came back. The last counts once: a shard may come back for ever. */
    uint64_t push_since_ms;
    bool push_resent; /* the shard came back with that push under way */
    bool was_busy;    /* the last connection ended as a push has to wait for other workers */
    uint64_t held_until_ms; /* until a suspect is agreed on requests wait; 0: they do not */
    uint64_t push_notice_ms, pull_notice_ms;
    struct pull_queue pulls;
    struct named_pulls named;
    struct pull_reply answer; /* scratch, as it is large */
    struct bytes body;        /* scratch: decompressed */
};

/* A sentence for people that begins with "shard 3 at host:port ". */
void link_phase_notice(struct shard_link *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

void link_phase_set(struct shard_link *l, enum link_phase phase);

/* Drops the connection, if there is one. */
void link_phase_disconnect(struct shard_link *l);

/* Ends the link for good; informs the owner. */
void link_phase_give_up(struct shard_link *l, int status, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Ends the link: the shard has confirmed the farewell, or needs none. */
void link_phase_finish_leave(struct shard_link *l);

/* Drops the connection and dials again after the backoff. */
void link_phase_lose(struct shard_link *l, const char *why);

/* Was the request refused without a decision, so that another try may succeed? */
bool link_phase_is_transient(int status);

/* The shard refused `what`: drops the connection or ends the link. */
void link_phase_refused(struct shard_link *l, const char *what, int status, const char *text);

/* Sends the result of a message_write_*() that returned `status`, and takes the frame. A failure
 * drops the connection; a frame beyond the limit of the shard ends the link. */
void link_phase_send(struct shard_link *l, const char *what, int status, struct bytes *frame);

#endif
