/*
 * One question to another psd, on the main thread: is it the primary of this node's shards? It is greeted as a watcher,
 * and its greeting names the groups as it knows them.
 */
#ifndef SERVER_PEER_QUERY_H
#define SERVER_PEER_QUERY_H

#include "common/status.h"
#include "common/thread_role.h"
#include "proto/channel_loop.h"
#include "proto/message.h"

#define PEER_QUERY_MS 1000u     /* at a start: for all of it */
#define PEER_QUERY_SOON_MS 400u /* while replies wait for the peer, or may soon */

struct connector;

struct peer_answer {
    uint64_t term; /* of the primary that it knows; 0: it knows none */
    bool is_primary;
    char primary[MESSAGE_ADDRESS_MAX]; /* "": not known */
};

/* Zeroed: none is under way. */
struct peer_query {
    char peer[MESSAGE_ADDRESS_MAX]; /* HOST:PORT */
    char own[MESSAGE_ADDRESS_MAX];  /* of who asks */
    uint32_t node;
    struct hello hello;
    struct connector *connector; /* owned; NULL: no question is under way */
    struct bytes out;            /* a frame being made; empty in between */
    uint64_t until_ms;
    struct peer_answer answer;
    struct err err; /* of a frame that ends it */
    /* err->status: of sockets, -ETIMEDOUT, PS_EPROTO, or the peer's own refusal. */
    void (*done)(void *owner, const struct err *err, const struct peer_answer *answer);
    void *owner; /* borrowed */
};

/* `peer` is HOST:PORT, `own` that of who asks, `token` as a hello has it. `done` is called once, later, after wait_ms
 * at the latest; not after peer_query_drop(). A failure: it is no address, or there is no memory; then `done` is not
 * called. */
int peer_query_start(struct peer_query *q, struct channel_loop *channels, const char *peer,
                     const char *own, const char *token, uint32_t node, uint32_t wait_ms,
                     void (*done)(void *owner, const struct err *err,
                                  const struct peer_answer *answer),
                     void *owner, struct err *err) ON_MAIN MUST_CHECK;

static inline bool peer_query_is_running(const struct peer_query *q)
{
    return q->connector != NULL;
}

/* A few times a second. */
void peer_query_tick(struct peer_query *q, uint64_t now_ms) ON_MAIN;

void peer_query_drop(struct peer_query *q) ON_MAIN;

#endif
