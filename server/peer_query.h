/*
 * One question to another psd, in libuv's pool: is it the primary of this node's shards? It is greeted as a watcher,
 * and its greeting names the groups as it knows them.
 */
#ifndef SERVER_PEER_QUERY_H
#define SERVER_PEER_QUERY_H

#include "common/status.h"
#include "proto/message.h"

#define PEER_QUERY_MS 1000u     /* at a start: for all of it */
#define PEER_QUERY_SOON_MS 400u /* while replies wait for the peer, or may soon */

struct peer_query {
    char peer[MESSAGE_ADDRESS_MAX]; /* HOST:PORT */
    char token[128];                /* as a hello has it */
    uint32_t node, wait_ms;
};

struct peer_answer {
    uint64_t term; /* of the primary that it knows; 0: it knows none */
    bool is_primary;
    char primary[MESSAGE_ADDRESS_MAX]; /* "": not known */
};

/* Blocks for wait_ms at most. Statuses of sockets, -ETIMEDOUT, PS_EPROTO, or the peer's own refusal. */
int peer_query_ask(const struct peer_query *asked, struct peer_answer *ret, struct err *err)
    MUST_CHECK;

#endif
