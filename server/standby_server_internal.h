/*
 * A primary's part of its standby from inside: for standby_server_*.c alone.
 *
 *     standby_server_life.c    new and free, connections, the tick
 *     standby_server_follow.c  whom it is followed by: FOLLOW
 *     standby_server_switch.c  hands over to the standby: psctl switch
 *     standby_server_sync.c    is the standby in sync?
 *     standby_server_term.c    who serves: the start, terms, the claim that names another psd
 *     standby_server_claim.c   what is claimed of the coordination service
 *     standby_server_steps.c   jobs, orders to the shards, the end
 *     standby_server_report.c  what operators and refused workers see
 *     standby_server_address.c is the standby where it says that it is?
 *
 * Each calls only those below it. One job of libuv's pool is under way at a time: it reads and writes what this thread
 * leaves alone meanwhile.
 */
#ifndef SERVER_STANDBY_SERVER_INTERNAL_H
#define SERVER_STANDBY_SERVER_INTERNAL_H

#include "common/log_line.h"
#include "proto/message_replication.h"
#include "server/coordination.h"
#include "server/peer_query.h"
#include "server/pool_job.h"
#include "server/standby_copy.h"
#include "server/standby_server.h"
#include "server/standby_settings.h"
#include "server/standby_shards.h"

#define DOUBT_MAX 280u                       /* a sentence with an address */
#define STANDBY_SERVER_REFUSED_FOR_MS 60000u /* since it asked last */
#define STANDBY_SERVER_AGREEMENT_MS \
    1000u /* longer than what was on its way when the loss of a claim was seen */

enum server_state {
    SERVER_OFF,
    SERVER_ASKING,
    SERVER_AWAITED,
    SERVER_BEGINNING,
    SERVER_SERVING,
    SERVER_HANDED_OVER,
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
    struct connection *connection; /* borrowed; NULL: it has gone */
    uint64_t request_id, since_ms;
    struct follow asked;
    struct terms theirs; /* owned */
    char name[64];
    uint64_t *last, *keep,
        *first; /* owned, n_shards: this node's newest records; the answer's; of a copy */
    enum follow_action action;
    struct err err;
    bool has_the_data; /* of this pair, which this psd has not: err */
};

enum switch_step { SWITCH_NONE, SWITCH_DRAINING, SWITCH_SEALING, SWITCH_HANDED_OVER };

struct standby_server {
    struct standby_server_config config;
    uint32_t n_shards;
    struct channel_loop channels;
    struct connection_set connections;
    enum server_state state;
    bool is_closed;
    struct terms terms;
    bool was_in_sync;   /* at the start: the peer may have more, or be the primary */
    bool log_has_all;   /* at the start: all that the run before acknowledged is in this log */
    bool is_given_over; /* at the start: the peer has more, and was told to take over */
    bool
        is_older; /* at the start: than the peer knows this psd, and a person has to say who serves */
    bool accepts_loss;  /* a person has said that this psd serves without what it lacks */
    uint64_t peer_term; /* older: the newest term of this psd that the peer knows */
    bool had_standby;   /* TERMS, as this start found it, names one */
    bool
        is_handed_over; /* at the start: the peer was the primary, and ends to follow this psd */
    bool has_begun;     /* a term of this run is in `terms`, */
    enum follow_begun begun_with;                                   /* and began with this */
    void (*begun)(struct standby_server *s, const struct err *err); /* NULL: nobody waits */
    struct coordination *coordination; /* owned; NULL: TERMS alone decides */
    bool has_read_claim;               /* ASKING: it has decided */
    bool is_claiming;
    uint64_t claim_lost_ms; /* since when the service does not have its claim; 0: it has it */
    bool has_other_data; /* ASKING: the claim names another psd, whose data is not this one's */
    bool is_foreign;     /* the claim names this psd, but with other data than it has */
    uint64_t since_ms, asked_ms;
    uint64_t
        rises_ms; /* since when the standby has said that it is becoming the primary; 0: it has not */
    bool asked_whole; /* when it was asked, all its connections were there */
    struct sync sync;
    bool is_followed;                       /* the shards' fetches are for `name` */
    bool was_connected;                     /* all of them were */
    struct connection *follower_connection; /* borrowed: of its FOLLOW; NULL: it has gone */
    uint64_t followed_ms;
    uint64_t asked_to_follow_ms,
        gone_ms; /* the last FOLLOW of terms.peer; its last connection's end */
    char name[64];
    char note[STANDBY_SETTINGS_NOTE_MAX]; /* about who follows; "": nothing is to be said */
    struct follower_request request;
    struct { /* of the standby that copied last: without being in sync for long in between */
        char address[MESSAGE_ADDRESS_MAX];
        uint32_t n;
        uint64_t begun_ms;   /* the last one */
        uint64_t in_sync_ms; /* since when what it made is in sync */
    } copies;
    struct { /* the last one, for what a person has to mend */
        char address[MESSAGE_ADDRESS_MAX];
        char why[256]; /* "": there is none, or it follows */
        bool has_the_data;
        uint64_t since_ms, asked_ms;
    } refused;
    struct { /* standby_server_address.c */
        struct peer_query query;
        bool is_known;     /* it has answered, or not */
        char why[160];     /* it does not; "": it does */
        uint32_t n_failed; /* in a row */
        uint64_t next_ms;
    } address;
    struct { /* standby_server_switch.c */
        enum switch_step step;
        uv_timer_t timer;
        uint64_t since_ms;
        standby_server_switched *done; /* NULL: nobody waits */
        void *arg;
    } switching;
    struct standby_files files; /* owned: what the one that asks will copy */
    struct standby_copy *copy;  /* owned */
    struct pool_job job;
    struct peer_query query;
    struct standby_shards *shards; /* owned */
    struct log_line_limit limit;   /* of refusals */
    char sentence[256];            /* of its end */
    struct err write_err;          /* of the last write of TERMS */
};

static inline const char *standby_server_data_dir(const struct standby_server *s)
{
    return s->config.settings->data_dir;
}

/* --- standby_server_steps.c --- */

void standby_server_start_job(struct standby_server *s, void (*run)(void *server),
                              void (*done)(void *server)) ON_MAIN;
void standby_server_write_terms(struct standby_server *s, void (*done)(void *server)) ON_MAIN;

/* For the standby that asks, on every shard; then standby_server_go_on_following(). keep: of each; NULL: all 0. */
void standby_server_ask_shards(struct standby_server *s, enum shard_thread_standby what,
                               const uint64_t *keep) ON_MAIN;

/* Nobody waits for it. */
void standby_server_order(struct standby_server *s, enum shard_thread_standby what) ON_MAIN;

/* The end: another psd is the primary. _for_good: the next start follows it. */
void standby_server_depose(struct standby_server *s, const char *sentence) ON_MAIN;
void standby_server_depose_for_good(struct standby_server *s, const char *sentence) ON_MAIN;

/* Tells who asked for a switch how it has ended; err NULL: the standby is the primary. */
void standby_server_end_switch(struct standby_server *s, const struct err *err) ON_MAIN;

/* A step is under way: the next one waits for its end. */
static inline bool standby_server_is_busy(const struct standby_server *s)
{
    return s->job.is_running || peer_query_is_running(&s->query);
}

/* Its standby knows a newer state of this psd than is here: its directory was put back from an older copy. */
void standby_server_note_older(struct standby_server *s, uint64_t peer_term) ON_MAIN;

/* --- standby_server_report.c --- */

/* Of a psd that does not serve yet: who may have what it lacks; and until when workers are refused. */
void standby_server_describe_doubt(const struct standby_server *s, char *dst, size_t n_bytes)
    ON_MAIN;
void standby_server_describe_awaited(const struct standby_server *s, char *dst, size_t n_bytes)
    ON_MAIN;
/* Since when the standby that is known is gone; 0: it is there, asks to be, or is none. */
uint64_t standby_server_gone_unix_ms(const struct standby_server *s) ON_MAIN;

/* --- standby_server_claim.c: with --coord --- */

/* A claim that is known and names another psd; NULL: none is. */
const struct claim *standby_server_claim_of_another(const struct standby_server *s) ON_MAIN;

/* While that is so, and this psd may not claim again yet: true, and a sentence. */
bool standby_server_describe_lost_claim(const struct standby_server *s, char *dst,
                                        size_t n_bytes) ON_MAIN;
void standby_server_tick_claim(struct standby_server *s, uint64_t now_ms) ON_MAIN;

/* As `terms` has it: a term that begins, or whether the standby is in sync. done: clears is_claiming. */
void standby_server_claim(struct standby_server *s,
                          void (*done)(void *server, const struct err *err)) ON_MAIN;

/* --- standby_server_term.c --- */

struct coordination *standby_server_coordinate(struct standby_server *s) ON_MAIN;

/* A new term: written, claimed, served. begun: once, later; NULL: nobody waits. */
void standby_server_begin_term(struct standby_server *s,
                               void (*begun)(struct standby_server *s, const struct err *err))
    ON_MAIN;

/* Who is the primary? An answer that names another psd deposes this one. */
void standby_server_ask_peer(struct standby_server *s) ON_MAIN;

/* Has another psd a greater term, or the claim? */
void standby_server_check_terms(struct standby_server *s) ON_MAIN;
void standby_server_tick_term(struct standby_server *s, uint64_t now_ms) ON_MAIN;

/* --- standby_server_address.c --- */

void standby_server_tick_address(struct standby_server *s, uint64_t now_ms) ON_MAIN;

/* A note for operators; nothing: it answers. */
void standby_server_describe_address(const struct standby_server *s, char *dst, size_t n_bytes)
    ON_MAIN;

/* -EAGAIN: not known yet; -EHOSTUNREACH and a sentence: it does not answer at its address. */
int standby_server_check_address(const struct standby_server *s, struct err *err) ON_MAIN;

/* --- standby_server_sync.c --- */

void standby_server_tick_sync(struct standby_server *s, uint64_t now_ms) ON_MAIN;

/* --- standby_server_switch.c --- */

/* The shards have done what they were asked. */
void standby_server_go_on_switching(struct standby_server *s) ON_MAIN;

/* The standby asks to follow: it has not taken over, and will not. */
void standby_server_refuse_hand_over(struct standby_server *s) ON_MAIN;

/* --- standby_server_follow.c --- */

int standby_server_receive_follow(struct standby_server *s, struct request *r) ON_MAIN;
void standby_server_end_follow(struct standby_server *s);
void standby_server_tick_follow(struct standby_server *s) ON_MAIN;

/* The shards have done what they were asked. */
void standby_server_go_on_following(struct standby_server *s) ON_MAIN;

#endif
