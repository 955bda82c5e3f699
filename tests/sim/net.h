/*
 * Connections between workers and shards. On each, either way, messages arrive in order, each after some time; different
 * connections know nothing of each other. A cut is seen by either end when it is seen: until then a shard may still
 * hear what was sent before, also when the worker is already back on another connection. What was under
 * way to an end that has closed is lost.
 */
#ifndef TESTS_SIM_NET_H
#define TESTS_SIM_NET_H

#include "proto/spec.h"
#include "tests/sim/events.h"
#include "tests/sim/ledger.h"

enum message_type {
    MESSAGE_JOIN,
    MESSAGE_TABLE,
    MESSAGE_PUSH,
    MESSAGE_PULL,
    MESSAGE_BEAT,
    MESSAGE_LEAVE
};

/* A request, or with `is_reply` the answer to one. */
struct message {
    enum message_type type;
    bool is_reply;
    int status;
    uint64_t incarnation, clock;      /* of a join; a pull; the answer to a join */
    uint64_t last;                    /* last acknowledged; last applied */
    uint64_t fenced_below, min_clock; /* of answers */
    uint64_t unfinished, id;          /* of a pull */
    uint32_t table;
    const char *name; /* of who joins; static */
    struct sent_push *push;
};

struct connection_end {
    bool is_open;
    uint64_t last_us; /* when the last message to here arrives */
};

struct net_connection {
    uint32_t id, worker, shard;
    struct connection_end at_worker, at_shard;
    uint64_t life;                     /* of the process that has the shard's end */
    bool has_joined;                   /* the shard's: the worker that speaks here */
    uint64_t incarnation, join_number; /* of it */
};

struct net_events {
    /* A shard hears its first message of a connection: which process is there? 0: none. */
    uint64_t (*life)(void *owner, uint32_t shard);
    void (*on_request)(void *owner, struct net_connection *c, const struct message *m);
    void (*on_reply)(void *owner, struct net_connection *c, const struct message *m);
    void (*on_shard_closed)(void *owner, struct net_connection *c);
    void (*on_worker_closed)(void *owner, struct net_connection *c);
};

struct net {
    struct events *events; /* borrowed, as all here */
    const struct net_events *handlers;
    void *owner;
    struct dice dice;
    uint32_t delay_us;
    struct net_connection **connections; /* owned, for as long as this lives */
    uint32_t n;
};

void net_init(struct net *n, struct events *events, const struct net_events *handlers,
              void *owner, struct dice dice, uint32_t delay_us);
void net_deinit(struct net *n);

struct net_connection *net_dial(struct net *n, uint32_t worker, uint32_t shard);
void net_ask(struct net *n, struct net_connection *c, const struct message *m);
void net_answer(struct net *n, struct net_connection *c, const struct message *m);

/* The worker hangs up: hears nothing any more; the shard hears of it later. */
void net_hang_up(struct net *n, struct net_connection *c);
/* Both ends hear of it later. */
void net_cut(struct net *n, struct net_connection *c);
/* The shard's process is gone. */
void net_reset(struct net *n, uint32_t shard);

#endif
