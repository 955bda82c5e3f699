/* What standby_server_follow.c keeps, for standby_server_report.c, which tells operators of it. */
#ifndef SERVER_STANDBY_SERVER_INTERNAL_H
#define SERVER_STANDBY_SERVER_INTERNAL_H

#include "common/log_line.h"
#include "proto/message_replication.h"
#include "server/coordination.h"
#include "server/peer_query.h"
#include "server/pool_job.h"
#include "server/standby_copy.h"
#include "server/standby_server.h"
#include "server/standby_shards.h"

enum server_state {
    SERVER_OFF,
    SERVER_ASKING,
    SERVER_AWAITED,
    SERVER_BEGINNING,
    SERVER_SERVING,
    SERVER_DEPOSED
};

/* A FOLLOW on its way to its answer. */
enum follow_step {
    FOLLOW_NONE,
    FOLLOW_LEAVING,
    FOLLOW_HOLDING,
    FOLLOW_DECIDING,
    FOLLOW_BEGINNING
};

struct follower_request {
    enum follow_step step;
    bool is_classified;            /* GO_ON or COPY: what is left is to make it so */
    struct connection *connection; /* borrowed; NULL: it has gone */
    uint64_t request_id;
    struct follow asked;
    struct terms theirs; /* owned */
    char name[64];
    uint64_t *last, *keep,
        *first; /* owned, n_shards: this node's newest records; the answer's; of a copy */
    enum follow_action action;
    struct err err;
};

/* standby_server_follow.c's, for standby_server_claim.c. On the main thread. */
struct standby_server_steps {
    void (*write_terms)(struct standby_server *s, void (*done)(void *server));
    void (*on_sync_note_write)(void *server);
    void (*start_query)(struct standby_server *s);
    void (*begin_term)(struct standby_server *s);
    void (*serve_term)(struct standby_server *s);
    void (*refuse_follow)(struct standby_server *s);
    void (*seal)(struct standby_server *s); /* no shard acknowledges anything any more */
    void (*depose_for_good)(struct standby_server *s, const char *sentence);
};

struct standby_server {
    const struct standby_server_steps *steps;
    struct standby_server_config config;
    uint32_t n_shards;
    struct channel_loop channels;
    struct connection_set connections;
    enum server_state state;
    bool is_closed;
    struct terms terms;
    bool was_in_sync; /* at the start: the peer may have more, or be the primary */
    bool has_begun;   /* a term of this run is in `terms` */
    struct coordination *coordination; /* owned; NULL: TERMS alone decides */
    bool has_read_claim;               /* ASKING: it has decided */
    bool is_claiming;
    bool is_foreign; /* the claim names this psd, but with other data than it has */
    uint64_t since_ms, asked_ms;
    struct sync sync;
    bool is_followed;                       /* the shards' fetches are for `name` */
    bool was_connected;                     /* all of them were */
    struct connection *follower_connection; /* borrowed: of its FOLLOW; NULL: it has gone */
    uint64_t followed_ms;
    char name[64];
    struct follower_request request;
    struct standby_files files; /* owned: what the one that asks will copy */
    struct standby_copy *copy;  /* owned */
    struct pool_job job;
    struct peer_query query;
    struct standby_shards *shards; /* owned */
    struct log_line_limit limit;   /* of refusals */
    char sentence[256];            /* of its end */
    struct err write_err;          /* of the last write of TERMS */
};

/* A step is under way: the next one waits for its end. */
static inline bool standby_server_is_busy(const struct standby_server *s)
{
    return s->job.is_running || peer_query_is_running(&s->query);
}

/* --- standby_server_claim.c: with --coord --- */

struct coordination *standby_server_coordinate(struct standby_server *s) ON_MAIN;

/* Who is named as the primary is it: nobody else. Once it is known, a start goes on. */
void standby_server_check_claim(struct standby_server *s) ON_MAIN;

/* The term that is in TERMS; it serves once that is claimed. */
void standby_server_claim_term(struct standby_server *s) ON_MAIN;

/* Whether the standby is in sync; then standby_server_on_sync_note_write(). Without --coord TERMS alone. */
void standby_server_write_sync(struct standby_server *s, bool in_sync) ON_MAIN;

uint64_t standby_server_next_term(const struct standby_server *s) ON_MAIN;

#endif
