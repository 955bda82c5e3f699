/*
 * The primary's side of a standby, on the main thread: who is the primary after a start, whom the shards' records are
 * for, whether that standby is in sync, and the files that it copies (FOLLOW, FILE; server/replication/README.md).
 *
 *     standby_server_begin() -> ASKING -> AWAITED -> BEGINNING -> SERVING -> DEPOSED
 *
 *     ASKING     the peer of the last run is asked who is the primary; the answer, or none, decides
 *     AWAITED    TERMS says that the peer was in sync: it may have more than this psd's log, or be the primary. Workers
 *                are refused until it follows, until it answers that it is the standby, or psctl promote --accept-loss
 *     BEGINNING  the new term goes to the disk
 *     SERVING    workers are served; a standby may follow
 *     HANDED_OVER  psctl switch: the standby is to take over, and its word is awaited
 *     DEPOSED    another psd has a greater term: this one ends
 *
 * Without TERMS, that is, without a standby ever, it is SERVING at once and writes nothing.
 *
 * With --coord the group's claim (coordination.h) decides instead of the peer's answer, and each term, and whether the
 * standby is in sync, is claimed there before it counts.
 */
#ifndef SERVER_STANDBY_SERVER_H
#define SERVER_STANDBY_SERVER_H

#include "server/net/connection.h"
#include "server/replication/terms.h"
#include "server/settings.h"
#include "server/shard_call.h"

#define STANDBY_SERVER_CONNECTIONS_MAX 8u

struct standby_server;

struct standby_server_config {
    uv_loop_t *loop;                   /* borrowed */
    const struct settings *settings;   /* borrowed */
    const struct file_ops *files;      /* borrowed */
    const struct hello_reply *welcome; /* borrowed */
    bool has_map;            /* else `welcome` is a guess, before the primary has said it */
    const char *own_address; /* borrowed; known once the shards are restored */
    struct channel_memory *memory; /* borrowed */
    struct shard_call_config shards;
    void (*serve)(void *owner);                         /* once: workers may come */
    void (*deposed)(void *owner, const char *sentence); /* once: this psd is to end */
    void (*restart)(void *owner, const char *why);      /* the same, to begin again */
    void (*changed)(void *owner);                       /* its report is another one now */
    bool (*serves_clients)(void *owner);                /* are any connected to shards? */
    void *owner;                                        /* borrowed */
};

struct standby_server *standby_server_new(const struct standby_server_config *config) ON_MAIN;
void standby_server_free(struct standby_server *s) ON_MAIN;

/* NULL without --coord. */
struct coordination *standby_server_coordination(const struct standby_server *s) ON_MAIN;

/* The shards are restored, and their logs open, of this timeline (log epoch). Calls serve(), now or later, unless the
 * peer is the primary. A failure: TERMS cannot be read. */
int standby_server_begin(struct standby_server *s, uint64_t timeline, struct err *err)
    ON_MAIN MUST_CHECK;

/* The same after a promotion: TERMS has the term that has begun, and this psd serves at once.
 * is_handed_over: by a switch. */
int standby_server_begin_promoted(struct standby_server *s, enum follow_begun begun_with,
                                  bool is_handed_over, struct err *err) ON_MAIN MUST_CHECK;

/* -EMFILE and a sentence: there are too many standbys' connections. */
int standby_server_admit(const struct standby_server *s, struct err *err) ON_MAIN MUST_CHECK;

/* A connection of role "standby" to the listener. Takes the socket whatever is returned. */
int standby_server_receive(struct standby_server *s, const struct connection_socket *socket,
                           uint64_t request_id, const struct hello *hello) ON_MAIN MUST_CHECK;

/* Ten times a second. */
void standby_server_tick(struct standby_server *s) ON_MAIN;

/* Closes all connections; no order goes to the shards any more. A second time: nothing. */
void standby_server_close(struct standby_server *s) ON_MAIN;

/* psctl promote: serves though the peer may have more. -EBUSY and a sentence where that is not what is waited for;
 * -EPERM without accept_loss. */
int standby_server_promote(struct standby_server *s, bool accept_loss, struct err *err)
    ON_MAIN MUST_CHECK;

/* psctl switch: the standby becomes the primary, and this psd its standby. `done` is called once, later, with a
 * sentence or what psctl prints. -EBUSY, -EAGAIN, -ENODATA, -ENOTCONN, -EHOSTUNREACH and a sentence: nothing was
 * begun. */
typedef void standby_server_switched(void *arg, const struct err *err, const char *json);
int standby_server_switch(struct standby_server *s, standby_server_switched *done, void *arg,
                          struct err *err) ON_MAIN MUST_CHECK;

/* The standby may be the primary by now: this psd's end is no failure. */
bool standby_server_has_handed_over(const struct standby_server *s) ON_MAIN;

/* True, and a sentence, while workers are refused because the peer is awaited. */
bool standby_server_is_waiting(const struct standby_server *s, struct err *ret) ON_MAIN;

/* For reports. */
void standby_server_report(const struct standby_server *s, struct stats_standby *ret) ON_MAIN;

#endif
