/*
 * The plain values that a training job and the client library exchange: options, sections,
 * counters. ps.h, which users include, holds the functions.
 */
#ifndef WORKER_CLIENT_PS_TYPES_H
#define WORKER_CLIENT_PS_TYPES_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/section.h"
#include "proto/spec.h"

#define PS_TABLES_MAX 256u

struct spool;

/* As whom a worker joins: its incarnation, and, if it goes on where another process stood (spool.h),
 * which of its pushes a shard may not have judged. */
struct ps_origin {
    uint64_t incarnation;
    uint64_t acked_seq, last_seq; /* those behind the one, up to the other */
    uint64_t clock;               /* of the first of them */
    uint64_t next_clock;          /* steps finished with the last of them */
    uint64_t map_id;
    uint32_t n_shards; /* they were for this cluster; 0: there are none */
};

struct ps_options {
    const char *servers; /* "host:port,host:port": any one of the cluster's nodes is enough */
    const char *token;   /* "" */
    const char *name;    /* for people: "psworker host:pid" */
    bool reader;         /* reads only (eval, predict): no job, no clock, never parked */
    const char *job;
    uint32_t rank, n_workers;
    enum spec_mode mode;   /* SPEC_MODE_ASYNC, _SSP, _BSP */
    uint32_t bound;        /* of SSP, clocks */
    uint32_t connect_ms;   /* wait for servers at the start, in any order; default 60000 */
    uint32_t give_up_ms;   /* a shard away for longer ends the job; default 60000 */
    uint32_t pull_ms;      /* deadline of one pull, parked time included; default 600000 */
    uint32_t window_bytes; /* ps_push() waits above so many unacknowledged; default 64 MiB */
    uint32_t answer_ms; /* of silence, until a shard is told of and asked anew; default 20000 */
    bool compress;      /* zstd where it pays */
    struct spool *spool; /* keeps pushes for the next process; borrowed; NULL: nobody does */
    struct ps_origin origin; /* ps_open() takes it from the spool */
    /* From any thread; may be NULL. */
    void (*on_notice)(void *arg, const char *sentence);
    void *notice_arg;
};

struct ps_pull_section;
struct push;

/* Takes rows with their optimizer's state (section.h), as one shard has sent them: those of the
 * section's keys numbers[0 .. n), ascending. The bytes are borrowed, and a peer's. What take()
 * returns ends the pull. */
struct ps_state_sink {
    int (*take)(void *arg, const struct ps_pull_section *s, uint32_t shard,
                const uint32_t *numbers, uint32_t n, const uint8_t *values, size_t value_bytes);
    void *arg;
};

/* Is shown every push that goes out, as each shard will get it, before it is sent; sections carry
 * the client's numbers of tables, seq is not set. Returns by how much the push raises the version
 * of a shard to which nobody else pushes. */
struct ps_tap {
    uint64_t (*push)(void *arg, uint32_t shard, const struct push *push);
    void *arg;
};

/* Rows to be read: n_keys ascending unique keys; dst takes n_keys x dim floats. With a sink rows
 * come with their state instead: codec is CODEC_FP32 and dst is not used. */
struct ps_pull_section {
    uint32_t table;
    enum codec_id codec;
    uint32_t n_keys;
    const uint64_t *keys;
    float *dst;
    const struct ps_state_sink *sink; /* borrowed; may be NULL */

    /* [n_keys] each, or NULL: filled by a store that tells places (worker/store.h). */
    uint64_t *versions;
    uint32_t *places;
};

/* Rows to be pushed: values holds n_keys x dim floats. Or, of gradients, encoded holds as many rows as the codec
 * writes them, by somebody who keeps what is owed himself (owed.h): then nobody looks at values, nor at what
 * the table owes here. */
struct ps_push_section {
    uint32_t table;
    enum section_op op;
    enum codec_id codec;
    float topk_fraction; /* of dim kept by topk: k = max(1, floor(dim * fraction)) */
    uint32_t n_keys;
    const uint64_t *keys;
    const float *values;
    const uint8_t *encoded; /* or NULL */
};

struct ps_stats {
    uint64_t bytes_in, bytes_out; /* on the wire, frame headers included */
    uint64_t bytes_pushed;        /* keys and values of pushes handed over, each counted once */
    uint64_t pulls, pushes, rows_pulled, rows_pushed, rows_refused, reconnects, resent_pushes,
        rejoins;
    uint64_t min_clock;     /* lowest that an answer carried last */
    uint64_t pulled_clock;  /* the same of the last pull that was answered */
    uint64_t staleness_max; /* clocks: the most that an answered pull was ahead of min clock */
    uint64_t park_ns;       /* time that ps_pull_wait() spent waiting for answers */
    uint64_t room_ns;       /* time that ps_push() spent waiting for room in the window */
    uint64_t
        waiting_ns;  /* how long the longest of the two waits under way has lasted; 0: none */
    uint64_t net_ns; /* CPU time of the network thread */
    uint64_t residual_rows,
        residual_bytes; /* what codecs with feedback have lost and owe, here in the worker */
    uint64_t residual_settled; /* rows sent in full to make room for others' residuals */
    uint64_t
        foreign; /* answers to pushes whose version told of somebody else's (struct ps_tap) */
    /* What the cache of rows did (worker/store_mirror.c); zeroes without one. Rows asked for, those
     * of them that it had, and those pulled again that it had had before; values' bytes that plain
     * pulls would have brought beyond those that came. */
    uint64_t rows_asked, rows_cached, rows_pulled_again, bytes_saved;
};

#endif
