/*
 * One connection of the benchmark to one shard.
 *
 *     DIALING -> HANDSHAKE -> JOINING -> NAMING -> FILLING -> IDLE
 *     IDLE -> LOADING -> DRAINING -> IDLE -> LEAVING -> GONE
 *
 * While LOADING, up to `depth` requests are in flight: in the closed loop each answer brings the
 * next request, in the open loop each is sent when it is due (psbench_pace.h). `grow` drains by
 * itself when every set has been sent.
 */
#ifndef TESTS_BENCH_PSBENCH_CONN_H
#define TESTS_BENCH_PSBENCH_CONN_H

#include <uv.h>

#include "proto/connector.h"
#include "proto/message.h"
#include "tests/bench/psbench_pool.h"
#include "tests/bench/psbench_types.h"

struct psbench_conn;

/* What is measured: in the closed loop the answers that come between start and end, in the open
 * loop the requests that are due then. 0: not yet. */
struct psbench_window {
    uint64_t start_ns, end_ns;
};

struct psbench_conn_config {
    struct channel_loop *channels; /* borrowed, as all here */
    const struct psbench_settings *settings;
    struct psbench_counts *counts;
    const struct psbench_pool *pool; /* the shard's */
    const struct psbench_window *window;
    struct address address;
    uint32_t number, n_conns;                /* of all */
    uint32_t shard, n_shards, shard_on_node; /* the first: of the cluster */
    uint32_t rank, n_ranks;                  /* among the connections to this shard */
    uint64_t map_id, incarnation;
    void (*idle)(void *owner); /* filled, or drained */
    void (*gone)(void *owner);
    void (*failed)(void *owner, const char *sentence);
    void *owner;
};

struct psbench_conn *psbench_conn_new(const struct psbench_conn_config *config);
void psbench_conn_free(struct psbench_conn *c);

void psbench_conn_load(struct psbench_conn *c);

/* Open loop: sends what is due by now. To be called all the time. */
void psbench_conn_turn(struct psbench_conn *c);

/* In which it has waited for an answer: none for settings->timeout_ms is a failure. To be called every ms
 * milliseconds, and as they pass in this process: a psbench that was stopped blames no server. */
void psbench_conn_wait(struct psbench_conn *c, uint64_t ms);

/* No more requests. */
void psbench_conn_drain(struct psbench_conn *c);
void psbench_conn_leave(struct psbench_conn *c);

/* Keeps the lease while nothing else is said. Every second or so. */
void psbench_conn_beat(struct psbench_conn *c);

#endif
