/*
 * One shard: its tables, its jobs, and pull and push on them. A shard has no sockets, files, clock or
 * threads. Time is an argument; the same calls in the same order give the same bytes. A shard belongs to one thread
 * from shard_new() to shard_free().
 *
 * Consistency (deploy/docs/concepts.md, "Modes"):
 *   - asynchronous and bounded-staleness (SSP) tables: a push is applied when it arrives;
 *   - lock-step (BSP) tables: the gradients of clock c are held until every counted worker has ticked past c. Then they
 *     are combined in rank order, weighted by n_samples / total, and applied once. Assignments, which initialise
 *     tables, are applied when they arrive;
 *   - a worker is counted while it is expected (not yet joined, until the join deadline) or live (lease);
 *   - pull(c, s) is answered once min clock >= c - s; s is the strictest bound of the tables in the pull. An SSP job
 *     also has sync points (shard_config.sync_steps): pulls of steps behind a sync point wait, and pushes are not
 *     committed, until all workers have arrived at it.
 *
 * A push is committed when its sequence number is next: it is applied or refused, its number is used up and its tick
 * counts (not that of a clock out of range). So a refusal is sent once and never stops the job. All failures happen
 * before a weight has changed.
 *
 * README.md beside this file shows the path of a push through server/core.
 */
#ifndef SERVER_CORE_SHARD_H
#define SERVER_CORE_SHARD_H

#include "common/histogram.h"
#include "common/status.h"
#include "common/thread_role.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "proto/section.h"
#include "proto/table_spec.h"
#include "server/core/membership.h"
#include "server/core/pull_deltas.h"
#include "server/core/shard_events.h"
#include "server/core/table.h"

#define SHARD_TABLE_NUMBERS_MAX (1u << 24) /* tables that a shard can ever have had */

struct shard;
struct shard_entry;

struct shard_config {
    uint32_t shard, n_shards;  /* this one, and how many the cluster has */
    uint64_t memory_max_bytes; /* rows, index and sketches of all tables; 0: no limit */
    uint64_t
        deltas_max_bytes; /* rows that clients have (delta_rows.h), of all together; 0: no limit */
    uint32_t
        lease_ms; /* a worker that is silent for longer is suspected, then dead (membership.h) */
    uint32_t join_ms;    /* how long the others wait for a worker that has never come */
    uint32_t park_ms;    /* the longest that a pull may be parked */
    uint32_t tables_max; /* no more are made beside so many; 0: no limit */
    /* Steps between two sync points of an SSP job (sync_point.h); 0: no sync points */
    uint32_t sync_steps;
    /* Floats of a gradient above it, which are finite but end in weights that are not, refuse the push, or are clipped
     * to it; 0: no limit, else at least 65536 */
    float gradient_max;
    bool clip_gradients, drops_learning;
};

/* Public state of one table. n_pushes counts pushes of gradients, also empty ones, and all pushes of
 * one lock-step clock as one; assignments do not count. */
struct shard_table {
    struct table_spec spec;
    struct table *rows;                    /* owned by the shard */
    uint64_t n_pushes;                     /* the optimizer's t, see below */
    uint32_t payload_bytes, weights_bytes; /* of a row, and the weights' part of it */
    uint64_t rows_refused;
    uint64_t rows_pulled, rows_pushed;
    /* Pushes of keys that were not admitted; rows removed: evicted by the budget, idle for idle_clocks,
     * older than ttl_s, too rarely pushed. */
    uint64_t rows_unadmitted, rows_evicted, rows_idle, rows_expired, rows_rare;
    uint64_t bytes_max; /* this shard's part of the table's budget; 0: no limit of its own */
    uint64_t count_min_bytes; /* of the sketches, which count keys without a row */
};

struct shard_push_result {
    int status;     /* of the reply: 0 or a refusal */
    char text[200]; /* a sentence when refused */
    /* Committed before; nothing done. If it is the worker's last refused push, it is refused again. */
    bool repeated;
    bool
        late; /* its job's step was over: gradients for lock-step tables were dropped (membership.h) */
    uint64_t min_clock, version;
    uint64_t rows_refused; /* new rows that found no place in the budget during this call */
};

/* The last refused push, kept for the operator. table is "" and key 0 if the refusal concerns no table. */
struct shard_refusal {
    uint64_t n; /* how many so far */
    int status;
    char text[200];
    char worker[64];
    char table[TABLE_SPEC_NAME_MAX];
    uint64_t key, clock;
};

/* Single writer: the shard's thread. Others read a copy that shard_thread publishes. */
struct shard_counters {
    uint64_t pulls, pushes, pushes_repeated, pushes_refused, pushes_fenced, ticks;
    uint64_t rows_pulled, rows_pushed, rows_new, rows_refused;
    uint64_t rows_unadmitted, rows_evicted, rows_idle, rows_expired, rows_rare;
    uint64_t nan_pushes, combined_clocks;
    uint64_t value_bytes_in[CODEC_ID_END], value_bytes_out[CODEC_ID_END]; /* as encoded */
    /* Above gradient_max, or assigned above SECTION_ASSIGN_MAX: refused. Clipped: in pushes that were not. */
    uint64_t huge_pushes, rows_clipped;
    uint64_t pushes_dropped; /* held for a clock that their worker did not end, or did again */
    uint64_t delta_rows[SECTION_DELTA_FULL +
                        1]; /* pulled as differences, by enum section_delta_mode */
    uint64_t delta_anew;    /* answers with differences that did not go on from one before */
    uint64_t delta_bytes_saved; /* against rows that come whole */
};

struct shard *shard_new(const struct shard_config *config);
void shard_free(struct shard *s) ON_SHARD;

/* Resets the shard to its new state, at the same address, after a failed restore: no scan, no events. */
void shard_clear(struct shard *s) ON_SHARD;

/* Creates the table, or finds it with the same specification; one that only adds (table_spec_only_adds()) gets the
 * settings that are asked for. With must_exist only the name is compared. PS_ESPEC (err names the field), PS_ENOTABLE
 * (must_exist), -ENOMEM, -ENOSPC (tables_max, or all numbers are used up), -EAGAIN (the log is full). */
int shard_table_open(struct shard *s, const struct table_spec *spec, bool must_exist,
                     uint32_t *ret_id, struct err *err) ON_SHARD MUST_CHECK;
/* The same for a table of a checkpoint, maybe of a time when new tables had wider ranges. */
int shard_table_restore(struct shard *s, const struct table_spec *spec, uint32_t *ret_id,
                        struct err *err) ON_SHARD;

/* Table number id, or NULL: there was none, or it was dropped. Ids count from 0; a dropped table's is not
 * given again. */
struct shard_table *shard_table(struct shard *s, uint32_t id) ON_SHARD;
uint32_t shard_n_tables(const struct shard *s) ON_SHARD; /* ids are below this */
uint32_t shard_n_live_tables(const struct shard *s) ON_SHARD;

/* Removes a table and all its rows. No push may be under way or held for it, and no pull (shard_pull_op) may go on with
 * it. The next checkpoint is a full one. For table_admin.c and replay. */
void shard_remove_table(struct shard *s, uint32_t id) ON_SHARD;

/* The next n ids are those of tables that a checkpoint has as dropped. -ENOMEM, -ENOSPC. */
int shard_skip_tables(struct shard *s, uint32_t n) ON_SHARD MUST_CHECK;

/* The jobs and their workers: join, beat, leave, look up (membership.h). */
struct membership *shard_membership(struct shard *s) ON_SHARD;

/* Handles one push of `worker`. Always fills *ret. Returns 0 if the push is committed, now or before.
 * Else returns the reason (the same as ret->status), and the push is still to come:
 *   - -ENOMEM: the state is unchanged; also if the push is ahead of the others and there is no memory to hold it;
 *   - -EAGAIN: the state is unchanged, because the log is full;
 *   - -EBUSY: the push is behind a sync point at which another worker has not arrived;
 *   - PS_ESEQ; PS_ENOJOIN: worker is NULL; PS_EFENCED: worker is not live.
 *
 * Refusals: PS_ENOTABLE, PS_EWIDTH (values), PS_ECODEC, PS_ECOUNT, PS_EORDER, PS_ESHARD, PS_ENAN, PS_EPROTO (a table
 * in two sections; a clock out of range; a lock-step clock that the worker has ticked past), PS_EBUDGET and PS_ETOOBIG
 * (too much is held for lock step). One fault refuses the whole push.
 *
 * Rows of sparse tables without space in the memory budget, or without memory, refuse nothing: the last ones in
 * ascending order of keys are left out and counted. Blocks of a dense table without space refuse the push (PS_EBUDGET)
 * or leave it uncommitted (-ENOMEM). After it, parked pulls may have become ready. */
int shard_push(struct shard *s, struct worker *worker, const struct push *push, uint64_t now_ms,
               struct shard_push_result *ret) ON_SHARD MUST_CHECK;

/*
 * shard_push() in slices, so that a large push delays other requests by one slice at most. The meaning of a push is the
 * same: it is checked whole, and takes its place in the order of pushes (number, version, step count, tick) at one
 * moment, before its first row changes. From then on, a reader or writer of a row that the push has still to change
 * gets that row changed first, so the push appears atomic. Only requests for budget and admission may change places.
 *
 * One push in slices is under way at a time; smaller ones overtake it. *push, the bytes it points to and *worker stay
 * borrowed meanwhile. ret is filled, as of that moment, when all rows have changed; the status returned then is
 * shard_push()'s.
 */
enum shard_push_state {
    SHARD_PUSH_DONE,
    SHARD_PUSH_RUNNING, /* shard_push_more() goes on with it */
    SHARD_PUSH_BUSY /* one under way is the worker's own, or as large: nothing done, begin again */
};

#define SHARD_SLICE_BYTES (512u << 10)
#define SHARD_SMALL_SLICE_BYTES (128u << 10)

/* Of all slices from here on; a push, pull or clock of more rows is large. At first, and at most, SHARD_SLICE_BYTES. */
void shard_set_slice(struct shard *s, uint64_t n_bytes) ON_SHARD;
/* Of its rows, in bytes of a slice; a pull's scan costs more than any slice. */
uint64_t shard_push_cost(const struct shard *s, const struct push *push) ON_SHARD;
uint64_t shard_pull_cost(const struct shard *s, const struct pull *pull) ON_SHARD;

int shard_push_begin(struct shard *s, struct worker *worker, const struct push *push,
                     uint64_t now_ms, struct shard_push_result *ret,
                     enum shard_push_state *ret_state) ON_SHARD MUST_CHECK;
int shard_push_more(struct shard *s, uint64_t now_ms, struct shard_push_result *ret,
                    enum shard_push_state *ret_state) ON_SHARD MUST_CHECK;

/* Is a push of this worker between its slices? Its rank is joined, and it leaves, behind that. */
bool shard_is_pushing(const struct shard *s, const struct worker *worker) ON_SHARD;
/* Finishes the push under way at once, as psd stops. shard_push_more() then returns its result. A clock that it
 * completed goes on (lock_step.h). */
void shard_finish_push(struct shard *s) ON_SHARD;
/* True if no push and no clock is between its slices: all rows are those of the newest event. */
bool shard_is_between_changes(const struct shard *s) ON_SHARD;
/* Counts a push whose sender membership_find() has found fenced. */
void shard_push_fenced(struct shard *s) ON_SHARD;

/* Sizes of the reply: ret_value_bytes[i] for each section, before memory is reserved. For a section that asks for
 * state, or is a scan (section.h): its upper bound. Refuses unknown tables, wrong codecs, more keys than their bytes
 * can hold, replies above `max_bytes`: PS_ENOTABLE, PS_ECODEC, PS_ECOUNT, PS_ETOOBIG. */
int shard_pull_plan(struct shard *s, const struct pull *pull, size_t max_bytes,
                    size_t *ret_value_bytes, struct err *err) ON_SHARD MUST_CHECK;

/* True if this pull can be answered now. worker NULL (a reader): always. */
bool shard_pull_ready(struct shard *s, const struct worker *worker, const struct pull *pull)
    ON_SHARD;

/* The min clock of its job that a pull waits for; 0: none. *ret_is_sync_point: it waits for a sync point, not for the
 * staleness bound. */
uint64_t shard_pull_needs(const struct shard *s, const struct job *job, const struct pull *pull,
                          bool *ret_is_sync_point) ON_SHARD;

/* Encodes the rows into dst (one section behind the other). A key without a row reads as its initial weights; pulling
 * makes no row. Counts the staleness that the answer really has, when worker is given; without, min clock is 0.
 * PS_ECOUNT, PS_EORDER, PS_ESHARD, -ENOMEM: nothing counted, dst undefined. */
int shard_pull(struct shard *s, struct worker *worker, const struct pull *pull, uint8_t *dst,
               uint64_t *ret_min_clock, uint64_t *ret_version, struct err *err)
    ON_SHARD MUST_CHECK;

/* A section of a pull or push, resolved against its table. section_check.h fills it; private to the shard. */
struct shard_section {
    const struct section *sent; /* borrowed: as it was received */
    struct shard_entry *entry;
    const struct codec *codec;    /* static */
    size_t row_bytes;             /* as encoded; of a pull that asks for state: as stored */
    struct key_codec_reader keys; /* those that have still to be read */
};

/* A pull in slices. Each row is read whole; between slices other requests change rows. *pull, its bytes and dst stay
 * borrowed. */
struct shard_pull_op {
    const struct pull *pull;
    uint64_t min_clock, version;  /* when reading began: the answer holds at least these */
    uint8_t *dst;                 /* where the next row goes */
    uint32_t at, n_scans;         /* the section being read; scans of the pull */
    struct shard_section section; /* that one */
    uint32_t n_read;              /* rows of it */
    uint8_t *present;             /* of a section that asks for its bits: these, in the reply */
    bool copies;                  /* its rows are stored as they are sent */
    struct pull_deltas
        *deltas; /* borrowed: the connection's, set behind shard_pull_begin(); NULL: none */
    struct delta_writer delta; /* of a section that asks for them */
    struct delta_rows bare;    /* of a table for which the connection has no place */
    const uint64_t
        *known;     /* shard_pull_decode_keys(): the next key of those to be read; or NULL */
    size_t n_known; /* how many were read so far */
    bool is_open;   /* `section` is filled */
    bool done;      /* all rows are read: shard_pull_end() */
    /* Bytes of the sections read so far, up to here in the current one: as planned, or less where it requests state. */
    size_t value_bytes[SECTIONS_MAX];
};

/* worker NULL: a reader; its min clock is 0. */
void shard_pull_begin(struct shard *s, const struct worker *worker, const struct pull *pull,
                      uint8_t *dst, struct shard_pull_op *ret) ON_SHARD;
/* Before the first slice: decodes the keys of all sections, one behind the other, into `keys`, which stays borrowed. A
 * call decodes some tens of thousands; the last one sets run->known. Then no slice is refused. As shard_pull(). */
int shard_pull_decode_keys(struct shard *s, struct shard_pull_op *op, uint64_t *keys,
                           struct err *err) ON_SHARD MUST_CHECK;
/* One slice more. Refusals as shard_pull(). */
int shard_pull_more(struct shard *s, struct shard_pull_op *op, struct err *err)
    ON_SHARD MUST_CHECK;
/* Counts a pull that was read to its end, as shard_pull() does. */
void shard_pull_end(struct shard *s, struct worker *worker, const struct shard_pull_op *op)
    ON_SHARD;
/* Upper bound of the bytes that a slice writes, for such a pull without state. dst may differ in each slice. */
size_t shard_pull_slice_bytes(const struct shard *s, const struct pull *pull) ON_SHARD;
/* True if it needs more than one slice, or scans: in slices of its own, of up to SHARD_SLICE_BYTES. For one planned. */
bool shard_pull_is_large(const struct shard *s, const struct pull *pull) ON_SHARD;

/* Sets the receiver of all following changes (shard_events.h; borrowed); NULL: none. Between requests, after
 * shard_finish_push(). */
void shard_set_events(struct shard *s, const struct shard_events *events) ON_SHARD;

/* Advances the time: ends leases and join deadlines, and applies lock-step clocks that waited for dead workers. True if
 * a parked pull may have become ready. Also to be called after membership_leave(). */
bool shard_advance(struct shard *s, uint64_t now_ms) ON_SHARD;

uint64_t shard_version(const struct shard *s) ON_SHARD;

/* The magnitude (codec_bytes_magnitude()) above which a float of a gradient is too large. */
uint32_t shard_gradient_max(const struct shard *s) ON_SHARD;
/* Rows, index, and pushes held for lock step. */
uint64_t shard_bytes(const struct shard *s) ON_SHARD;
const struct shard_counters *shard_counters(const struct shard *s) ON_SHARD;
const struct shard_refusal *shard_last_refusal(const struct shard *s) ON_SHARD;

#endif
