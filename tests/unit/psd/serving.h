/*
 * A service over a real shard, its clients being socket pairs: what the loop of a shard thread
 * does, without the thread.
 */
#ifndef TESTS_UNIT_PSD_SERVING_H
#define TESTS_UNIT_PSD_SERVING_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/memory.h"
#include "proto/key_codec.h"
#include "server/net/connection.h"
#include "server/requests/dispatch.h"
#include "tests/unit/net/peer.h"

#define DIM 4u

struct fixture {
    uv_loop_t loop;
    struct channel_loop channels;
    struct channel_memory memory; /* of which there is enough */
    struct shard *shard;
    struct reply_queue replies;
    struct dispatch *dispatch;
    struct connection_set connections;
    struct hello_reply welcome;
};

/* wait_max_ms: of joins and tables for room in the log. */
void set_up_waiting(struct fixture *f, uint64_t wait_max_ms);

static inline void set_up(struct fixture *f)
{
    set_up_waiting(f, 1000000);
}

void tear_down(struct fixture *f);

/* frame_flags: what it understands. */
struct peer client_of(struct fixture *f, const char *role, uint32_t frame_flags);

struct peer client_with(struct fixture *f, const char *role, const struct access *access);

static inline struct peer client(struct fixture *f, const char *role)
{
    return client_of(f, role, 0);
}

void send_table(struct peer *p, const char *name);
struct table_reply hear_table(struct peer *p);
uint32_t ask_table(struct peer *p, const char *name);
void send_join(struct peer *p, uint32_t rank, uint64_t incarnation);
struct join_reply hear_join(struct peer *p);
struct join_reply join_job(struct peer *p, uint32_t rank, uint64_t incarnation);

/* One that has joined. */
struct peer worker_of(struct fixture *f, uint32_t rank);

/* Pushes are request 100 and their number. */
struct push_reply hear_push(struct peer *p, uint64_t seq);

struct pull_reply hear_pull(struct peer *p, uint64_t request_id);
int beat(struct peer *p);

/* A heartbeat that says something of incarnation 1 of `rank`. */
struct status_reply beat_about(struct peer *p, uint32_t rank, bool is_agreed);

#endif
