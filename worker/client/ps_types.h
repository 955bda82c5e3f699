/*
 * The plain values that a training job and the client library exchange: options, sections,
 * counters. ps.h, which users include, holds the functions.
 */
#ifndef WORKER_CLIENT_PS_TYPES_H
#define WORKER_CLIENT_PS_TYPES_H

#include <stdbool.h>

#include "common/address.h"
#include "common/status.h"
#include "common/tls.h"
#include "proto/codec.h"
#include "proto/section.h"
#include "proto/table_spec.h"

#define PS_TABLES_MAX 256u

struct pending_report;
struct push_journal;

/* The identity of a worker: its incarnation and, after a restart with a journal (push_journal.h), the pushes that a
 * shard may not have acknowledged. */
struct ps_origin {
    uint64_t incarnation;
    uint64_t acked_seq, last_seq; /* may be unacknowledged: acked_seq + 1 .. last_seq */
    uint64_t clock;               /* of the first of them */
    uint64_t next_clock;          /* steps finished with the last of them */
    uint64_t map_id;
    uint32_t n_shards; /* of the cluster of these pushes; 0: there are none */
};

struct ps_options {
    const char *servers; /* "host:port,host:port": any one of the cluster's nodes is enough */
    const char *token;   /* "" */
    struct tls_context *tls; /* borrowed until ps_close(); NULL: plain */
    const char *name;        /* for people: "psworker host:pid" */
    bool reader;             /* reads only (eval, predict): no job, no clock, never parked */
    const char *job;
    uint32_t rank, n_workers;
    enum table_spec_mode mode; /* TABLE_SPEC_MODE_ASYNC, _SSP, _BSP */
    uint32_t bound;            /* of SSP, clocks */
    uint32_t
        n_backups; /* of lock step: a step goes without so many workers; who is behind goes on at stats.min_clock */
    uint32_t connect_ms;   /* wait for servers at the start, in any order; default 60000 */
    uint32_t give_up_ms;   /* a shard away for longer ends the job; default 60000 */
    uint32_t pull_ms;      /* deadline of one pull, parked time included; default 600000 */
    uint32_t window_bytes; /* ps_push() waits above so many unacknowledged; default 64 MiB */
    uint32_t answer_ms;    /* silence before a notice and a new connection; default 20000 */
    bool compress;         /* zstd where it pays */
    bool names_keys;       /* a push with the keys of a pull does not send them again */
    struct pending_report
        *report; /* reports of learning; borrowed until ps_close(); may be NULL */
    struct push_journal *journal; /* keeps pushes for the next process; borrowed; may be NULL */
    struct ps_origin origin;      /* ps_open() takes it from the journal */
    /* From any thread; may be NULL. */
    void (*on_notice)(void *arg, const char *sentence);
    void (*on_warning)(void *arg,
                       const char *sentence); /* reports lost pushes; NULL: on_notice */
    void *notice_arg;
    /* Asked by the thread that runs the network: true ends every wait, with -ECANCELED, for good. NULL: never. */
    bool (*is_cancelled)(const void *arg);
    const void *cancel_arg; /* borrowed */
    /* Threads that wait do the network's work, and those that pull and push send: for callers whose answers are soon
     * there. False: all is the network thread's, beside them; for those who have something else to do meanwhile.
     * Only with is_interruptible. */
    bool drives;
    /* For a caller that is not ours (client_state_hooks). Waits end with -EINTR behind a signal. */
    bool is_interruptible;
    uint32_t
        push_ms; /* longest that ps_push() waits for the window; 0: as long as the links do */
    /* By any thread, which must not wait in it: ps_pull_next() has a pull, and had none. NULL: it never has. */
    void (*on_came)(void *arg);
    void *came_arg; /* borrowed */
    uint32_t
        net_threads; /* that have the shards' sockets, the network's own with them; 0: 1. Without `drives` */
};

struct ps_pull_section;
struct ps_scan;
struct pulled_rows;
struct request;

/* Takes rows with their optimizer's state (section.h), as one shard has sent them: those of the
 * section's keys numbers[0 .. n), ascending. The bytes are borrowed and not trusted. A status of take()
 * ends the pull. */
struct ps_state_sink {
    int (*take)(void *arg, const struct ps_pull_section *s, uint32_t shard,
                const uint32_t *numbers, uint32_t n, const uint8_t *values, size_t value_bytes);
    /* NULL, or of a sink that takes rows as differences: what this shard's section says (section.h). Then `values` are
     * those, and the codec is that of rows that come whole. */
    struct section_delta (*ask)(void *arg, const struct ps_pull_section *s, uint32_t shard);
    uint32_t features; /* MESSAGE_FEATURE_* that such pulls need beside those of differences */
    void *arg;
};

/* Called with every push before it is sent, once for each shard: its request, whose sections carry the
 * client's numbers of tables and whose seq is not set. Returns the growth of the shard's version by
 * this push alone. */
struct ps_tap {
    uint64_t (*push)(void *arg, uint32_t shard, const struct request *push);
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
    /* Which keys had a row, section_present_bytes(n_keys); or NULL. Without one the key's row is as it would begin. */
    uint8_t *present;
    struct ps_scan *
        scan; /* ps_tables.c's: the section has no keys, and is the scan's next slice; else NULL */

    /* [n_keys] each, or NULL: filled by a store that knows places (worker/param_store.h). */
    uint64_t *versions;
    uint32_t *places;

    /* NULL, or the row of dst that each key's row goes to: for some rows of an array of more. */
    const uint32_t *rows;

    /* NULL, or space for the optimizer states of the rows of dst that a store fills in for a device (param_store.h). */
    float *states;

    /* NULL, or takes the rows as their codec has written them: dst is not used. Of one section of a pull. */
    struct pulled_rows *pulled;
};

/* Rows to be pushed: values holds n_keys x dim floats. Or, of gradients, encoded holds as many rows as the codec
 * writes them, whose residuals the caller keeps (error_feedback_index.h): then values and the encoder's residuals are
 * not used. */
struct ps_push_section {
    uint32_t table;
    enum section_op op;
    enum codec_id codec;
    float topk_fraction; /* of dim kept by topk: k = max(1, floor(dim * fraction)) */
    uint32_t n_keys;
    const uint64_t *keys;
    const float *values;
    const uint8_t *encoded; /* or NULL */
    /* Of SECTION_ASSIGN_STATE: n_keys x table_spec_state_floats(); the table's step count, or 0. Of SECTION_RATE:
     * section_rate_steps(). */
    const float *state;
    uint64_t steps;
    /* Of SECTION_GRADIENT_AT: the weights of these gradients, n_keys x dim floats; steps is section_delay_steps(). */
    const float *then;
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
    uint64_t window_ns;     /* time that ps_push() spent waiting for the window */
    uint64_t
        waiting_ns;  /* how long the longest of the two waits under way has lasted; 0: none */
    uint64_t net_ns; /* CPU time of the network's threads */
    uint64_t residual_rows,
        residual_bytes;        /* residuals of codecs with feedback, in this process */
    uint64_t residual_flushed; /* rows sent in full so that other residuals fit */
    uint64_t
        foreign; /* answers to pushes whose version includes another worker's (struct ps_tap) */
    uint64_t
        pushes_lost; /* acknowledged, and gone with a crash of their shard (once for each shard) */
    uint64_t
        skipped_clocks; /* that no process of this rank has done: the job went on without it */
    uint64_t
        pushes_late; /* for their step, of which others were first: dropped (once for each shard) */
    /* Counters of the row cache (worker/param_store_exact_cache.c); zeroes without one. Rows asked for, those
     * of them that it had, and those pulled again that it had had before; values' bytes that plain
     * pulls would have brought beyond those that came. */
    uint64_t rows_asked, rows_cached, rows_pulled_again, bytes_saved;
    /* By codec: bytes of rows' values as it writes them, before zstd, of pulls that were sent and pushes that were
     * handed over. Pulls of differences count as whole rows. */
    uint64_t values_pulled[CODEC_ID_END], values_pushed[CODEC_ID_END];
    char moved_to
        [ADDRESS_SERVER_MAX]; /* the last psd that took over another one's shards; or "" */
    uint64_t rows_read_ahead; /* of rows_cached: while the step before computed */
    uint64_t rows_on_device;  /* that a device has in place of the row cache, now */
};

#endif
