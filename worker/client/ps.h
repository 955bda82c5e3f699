/*
 * libps: what a training job says to psd. Row values in, row values out; which shard, how it
 * travels, and what happens when a connection breaks is the library's business.
 *
 * A client owns one network thread with a libuv loop and one link to each shard of the cluster. All functions below are called
 * from one thread, the trainer's. Every wait has a deadline; when a shard is away the library reconnects, says so
 * through on_notice, resends what was not acknowledged, and gives up with a sentence after `give_up_ms`.
 */
#ifndef WORKER_CLIENT_PS_H
#define WORKER_CLIENT_PS_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/section.h"
#include "proto/spec.h"

#define PS_TABLES_MAX 256u

struct ps_client;

struct ps_options {
    const char *servers;    /* "host:port,host:port": any one of the cluster's nodes is enough */
    const char *token;      /* "" */
    const char *name;       /* for people: "psworker host:pid" */
    bool reader;            /* reads only (eval, predict): no job, no clock, never parked */
    const char *job;
    uint32_t rank, n_workers;
    enum spec_mode mode;    /* SPEC_MODE_ASYNC, _SSP, _BSP */
    uint32_t bound;         /* of SSP, clocks */
    uint32_t connect_ms;    /* wait for servers at the start (any start order works); default 60000 */
    uint32_t give_up_ms;    /* a shard away for longer ends the job; default 60000 */
    uint32_t pull_ms;       /* deadline of one pull, parked time included; default 600000 */
    uint32_t window_bytes;  /* unacknowledged pushes of all links; ps_push() waits above it; default 64 MiB */
    bool compress;          /* zstd where it pays */
    void (*on_notice)(void *arg, const char *sentence); /* from the network thread; may be NULL */
    void *notice_arg;
};

/* Rows to be read: n_keys ascending unique keys; dst takes n_keys x dim floats. */
struct ps_pull_section {
    uint32_t table;
    enum codec_id codec;
    uint32_t n_keys;
    const uint64_t *keys;
    float *dst;
};

/* Rows to be pushed: values holds n_keys x dim floats. */
struct ps_push_section {
    uint32_t table;
    enum section_op op;
    enum codec_id codec;
    float topk_fraction;    /* of dim kept by topk: k = max(1, floor(dim * fraction)) */
    uint32_t n_keys;
    const uint64_t *keys;
    const float *values;
};

struct ps_stats {
    uint64_t bytes_in, bytes_out;     /* on the wire, frame headers included */
    uint64_t pulls, pushes, rows_pulled, rows_pushed, rows_refused, reconnects, resent_pushes, rejoins;
    uint64_t min_clock;               /* lowest that an answer carried last */
    uint64_t staleness_max;           /* clocks: the most that an answered pull was ahead of min clock */
    uint64_t park_ns;                 /* time spent waiting for pulls */
};

/* Connects, learns the cluster, greets and joins every shard. Waits until connect_ms for servers that are not there yet. */
int ps_open(const struct ps_options *options, struct ps_client **ret_client, struct err *err) MUST_CHECK;

/* Drops everything; does not wait (ps_flush() and ps_leave() do). NULL is fine. */
void ps_close(struct ps_client *c);

/* Makes the table on all shards, or finds it there with the same specification. */
int ps_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table, struct err *err) MUST_CHECK;

/* Finds a table by spec->name and fills the rest of *spec. PS_ENOTABLE if it is not there. */
int ps_table_find(struct ps_client *c, struct table_spec *spec, uint32_t *ret_table, struct err *err) MUST_CHECK;

/* One round trip: all sections, all shards. `clock`: steps finished. `start` returns at once, `wait` fills the dsts; at most one
 * pull is under way at a time, and its sections stay borrowed until wait returns. */
int ps_pull_start(struct ps_client *c, uint64_t clock, const struct ps_pull_section *sections, uint32_t n,
                  struct err *err) MUST_CHECK;
int ps_pull_wait(struct ps_client *c, struct err *err) MUST_CHECK;

/* Sends one numbered push to every shard (also to those that own none of the keys: the optimizer's step count needs it). Copies what it
 * needs and returns; a refusal (NaN, fenced) is told by the next call. With `tick` the worker's clock becomes clock + 1. */
int ps_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick, const struct ps_push_section *sections,
            uint32_t n, struct err *err) MUST_CHECK;

/* Waits until every push is acknowledged. */
int ps_flush(struct ps_client *c, struct err *err) MUST_CHECK;

/* Flushes, then says goodbye: the other workers no longer wait for this one. */
int ps_leave(struct ps_client *c, struct err *err) MUST_CHECK;

/* The clock at which the shards want this worker to go on: 0, or more for one that returns. Grows after a rejoin: a worker
 * declared dead (PS_EFENCED) joins again as a new incarnation by itself, drops what was under way, and says so in `rejoins`. */
uint64_t ps_clock(const struct ps_client *c);

void ps_stats(const struct ps_client *c, struct ps_stats *ret);

/* Operator's question to one node: "status", "tables", "workers", "why", "checkpoint". JSON text, to be freed. No ps_open() needed;
 * blocks up to timeout_ms. */
int ps_admin(const char *server, const char *token, const char *command, const char *argument, uint32_t timeout_ms,
             char **ret_json, struct err *err) MUST_CHECK;

#endif
