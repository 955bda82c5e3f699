/*
 * The struct behind shard.h, and its invariants. Its files, from the interface down: shard_life.c (life,
 * tables), push.c (the push state machine), pull.c (pulls), bsp.c (pushes held for lock step), combine.c (a
 * clock's rows), row_step.c (a step of one row),
 * section_check.c (a section against its table), push_apply.c (changed rows), row_admission.c (does a key
 * get a row), pending_rows.c (rows still to change), shard_log_events.c (redo events). snapshot_scan.h and
 * replay.h are interfaces of their own.
 *
 * Invariants:
 *   1. Every row's key routes to this shard; a dense table's keys are below n_blocks.
 *   2. No NaN and no Inf that a peer sent reaches a row.
 *   3. A worker's last_seq is the number of its last acknowledged push; all before it are acknowledged too.
 *   4. held_bytes is the sum of n_bytes over all held pushes of all queues and of the clock in slices.
 *   5. A row that a committed push has still to change is not removed, and no reader finds it before it
 *      is changed.
 */
#ifndef SERVER_CORE_SHARD_INTERNAL_H
#define SERVER_CORE_SHARD_INTERNAL_H

#include "common/bytes.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "server/core/count_min.h"
#include "server/core/optimizer.h"
#include "server/core/shard.h"
#include "server/core/shard_events.h"
#include "server/core/version_age.h"

#define SHARD_SCRATCH_KEEP_BYTES ((size_t)1 << 20) /* of each scratch buffer, between calls */
#define SHARD_KEY_COST 128u /* bytes of a slice, at least, that a key takes */
#define SHARD_CHUNK_MAX 128u
#define SHARD_TOPK_COST 4u /* times a row's: its bytes are gone through some thirty times */

#define SHARD_TURNOVER_RUNS 16u

/* A run of a job and the greatest clock that it has pushed. */
struct shard_turnover_run {
    uint64_t run, clock; /* run 0: none */
};

/* The state by which a shard decides about rows of a table: row_admission.c about new rows and evictions, expire.c
 * about rows that expire. Values only. */
struct shard_turnover {
    /* The table's clock: how many clocks its pushes have gone forward since this shard began,
     * those of several jobs added up. So a job that begins at 0 again moves it on. */
    uint64_t clock;
    struct shard_turnover_run runs[SHARD_TURNOVER_RUNS];

    struct count_min *sketch; /* owned; NULL until the first push of an absent key */
    uint64_t half;            /* number of the half-window that it is in */

    struct version_age idle, ttl; /* of clocks, of milliseconds */

    /* Eviction. */
    uint64_t hand;         /* the next row number that it examines */
    uint64_t threshold;    /* rows whose worth is this or less are evicted */
    uint64_t hand_left;    /* row numbers left in the round with this threshold */
    uint64_t n_thresholds; /* thresholds chosen so far */
    uint64_t barren;       /* the push (s->mark) for which no row could be evicted */
    /* Touches are halved after a fixed number of pushes per row. */
    uint64_t aged_at;  /* the table's rows_pushed when the last halving began */
    uint64_t age_left; /* row numbers that it has still to halve */

    /* The sweep's pass. */
    uint64_t at;        /* the next row number */
    uint64_t beyond;    /* what the horizons said when it began */
    uint64_t rare_from; /* clock at which the next pass of the rare rule may begin */
    bool sweeps, rare;  /* a pass is under way; it is one of the rare rule */
};

/* A table and what its specification means to this shard. */
struct shard_entry {
    struct shard_table table;
    uint32_t id;                   /* s->tables[id] */
    struct shard_entry *next_name; /* in s->names; borrowed */
    const struct optimizer *optim; /* static */
    uint64_t salt;                 /* for placement_shard() */
    uint64_t key_end;              /* dense: number of blocks; sparse: 0, any key */
    uint64_t mark;                 /* s->mark of the last push that named it */
    uint64_t n_held; /* sections for it in the pushes that the shard's queues hold (bsp.h) */
    uint32_t
        row_cost; /* of a row, in bytes of a slice: its own, or as many as its key is worth */
    uint32_t
        chunk_rows; /* worked on together: they stay in the cache from one step to the next */
    struct memory_budget budget; /* of its rows, index and sketch; parent: the shard's */
    struct shard_turnover turnover;
    struct pending_rows *changing; /* by pushes that have taken effect; borrowed */
    struct bytes
        gone; /* owned: keys of rows that went since the last base (shard_log_events.h) */
};

/* The rows of one table that a push changes, in the order of their keys. The arrays are scratch
 * of whoever works on them. */
struct pending_rows {
    struct shard_entry *entry;
    struct pending_rows *next; /* in entry->changing */
    uint64_t *keys;            /* n_keys ascending */
    uint8_t *marks; /* a bit for each that was changed before its turn; NULL where none is */
    uint32_t n_keys, n_done;
};

/* A section of a push. */
struct push_section {
    struct shard_section in;
    bool waits; /* a gradient of a lock-step table: held until its clock is complete */
    struct pending_rows rows; /* rows.n_done: rows that the phase has finished */
    struct optimizer_step
        step; /* of a gradient, once the push applies; of rows that are set t alone */
};

/* A fault of a push, and its place. */
struct push_fault {
    struct err err;
    const struct shard_entry *entry; /* NULL: the push as a whole */
    uint64_t key;
    bool is_huge; /* PS_ENAN of a finite gradient, above shard_config.gradient_max */
};

/*
 * A push on its way, in slices:
 *
 *     IDLE     no push
 *     CHECK    keys and values are held against the tables
 *     APPLY    it has taken effect: version, number, tick are given; rows are found or made,
 *              and change, in any order
 *     RELEASE  all is done, but a lock-step clock that it has ended is combined, in slices; its worker hears
 *              of it when that has ended
 *     DONE     `result` holds the status
 *
 * A fault in CHECK leads to DONE, with nothing left behind but the refusal. In APPLY there is
 * none: a key of a sparse table for which there is no memory gets no row, and is counted.
 */
enum push_phase { PUSH_IDLE, PUSH_CHECK, PUSH_APPLY, PUSH_RELEASE, PUSH_DONE };

struct bsp_held; /* bsp.h */

struct push_op {
    enum push_phase phase;
    const struct push *push; /* borrowed, like the worker */
    struct worker *worker;
    uint64_t incarnation, run; /* of the worker and its job, when it began */
    uint32_t section;          /* the phase is at this one of push->n_sections */
    struct push_section sections[SECTIONS_MAX];
    uint64_t version;      /* of the rows that it changes */
    struct bsp_held *held; /* between its copy and its place in the queue: owned */
    bool is_late;          /* for its clock (job_is_over()), when it takes effect */
    struct push_fault fault;
    uint64_t n_clipped; /* rows */
    int status;         /* shard_push()'s */
    bool is_whole;      /* nothing that it brings about goes on in slices */
    struct shard_push_result result;
    struct bytes keys, marks; /* owned: the sections' arrays */
};

struct bsp_queue;        /* bsp.h */
struct combine;          /* combine.h */
struct replay_decisions; /* replay_decisions.h */
struct snapshot_scan;    /* snapshot_scan.h */
struct row_provenance_push;

/* Removed or aged rows of one table whose event is still to be emitted (shard_log_events.h). */
struct shard_row_events {
    const struct shard_entry *entry;
    uint32_t n_gone, n_aged;
    uint64_t gone[SHARD_EVENT_ROWS_MAX], aged[SHARD_EVENT_ROWS_MAX];
    uint8_t touches[SHARD_EVENT_ROWS_MAX];
};

/* The base of a delta (snapshot_scan.h). */
struct shard_base {
    bool counts;      /* rows that go are noted, since the last base or the scan under way */
    bool is_there;    /* there is a base, and all that has gone since is known */
    uint64_t version; /* of that base */
    uint64_t n_gone;  /* noted, of all tables */
};

#define SHARD_LOCKED_JOBS_MAX 4u

/* A job whose tables are being changed on all shards: nobody joins it. */
struct shard_locked_job {
    char name[TABLE_SPEC_NAME_MAX]; /* "": none */
    uint64_t until_ms;
};

struct shard {
    struct shard_config config;
    struct shard_locked_job locked_jobs[SHARD_LOCKED_JOBS_MAX]; /* table_admin_lock() */
    const struct codec *codecs[CODEC_ID_END]; /* static: the builds for this processor */
    struct membership *membership;            /* owned */
    struct shard_entry **tables; /* owned, tables_cap; each owned, by id; NULL: dropped */
    uint32_t n_tables, tables_cap, n_live;
    struct shard_entry **names;  /* owned: tables_cap lists, by a hash of the table's name */
    uint32_t n_bsp_tables;       /* whose own mode is lock step, whatever the job's */
    struct memory_budget budget; /* rows, index and sketches of all tables, and their entries */
    uint32_t sweeps_table;       /* whose turn it is (expire.h) */
    uint64_t version;
    uint64_t mark;   /* counts examined pushes */
    uint64_t n_gone; /* of the membership, when parked pulls were last checked */
    struct shard_counters counters;
    struct shard_refusal refusal;
    struct bsp_queue *queues;        /* owned */
    struct bsp_queue *pooled_queues; /* owned: of no pushes, for jobs to come */
    uint64_t held_bytes;
    struct bsp_held *pooled_held; /* owned: pooled buffers for later pushes */
    uint64_t pooled_bytes;        /* theirs */

    struct row_provenance_push
        *pushes; /* owned: ROW_PROVENANCE_PUSHES, by version (row_provenance.h) */

    const struct shard_events *events; /* borrowed; NULL: none */
    struct shard_row_events row_events;
    struct replay_decisions *replay; /* borrowed; set while a log is replayed, else NULL */
    struct shard_base base;
    struct snapshot_scan *scan; /* the one under way, borrowed, or NULL */

    /* small: pushes that are done in one call; large: the one that goes on in slices. */
    struct push_op small, large;

    /* Owned: the clock that is combined in one call; the one that goes on in slices. */
    struct combine *small_clock, *large_clock;
    bool has_combined;    /* lock_step_has_combined() */
    uint64_t slice_bytes; /* shard_set_slice() */

    /* Scratch memory of one call. */
    float *gradient, *values; /* owned; scratch_floats each, as many as the widest row has */
    uint32_t scratch_floats;  /* at least TABLE_SPEC_DIM_MAX */
    struct bytes found;       /* owned: the rows of a scan's slice */
};

/* Space for n items at the beginning of a scratch buffer, or NULL. The earlier content is lost. */
static inline void *shard_scratch(struct bytes *b, uint64_t n, size_t item_bytes)
{
    return bytes_reserve(b, (size_t)n * item_bytes + 1);
}

/* shard_gradient_max() */
static inline uint32_t shard_magnitude_max(const struct shard_config *config)
{
    return config->gradient_max > 0 ? codec_bytes_of_float(config->gradient_max) : CODEC_FINITE;
}

/* Gives back what a rare large message has made scratch grow to. */
static inline void shard_trim(struct bytes *b)
{
    if (b->cap_bytes > SHARD_SCRATCH_KEEP_BYTES)
        bytes_deinit(b);
}

/* A row with its state, all of it as floats: section.h. */
static inline size_t shard_state_row_bytes(const struct shard_entry *entry)
{
    const uint32_t dim = entry->table.spec.dim;

    return (dim + (size_t)table_spec_state_floats(&entry->table.spec)) * sizeof(float);
}

static inline bool pending_rows_mark_is_set(const struct pending_rows *b, uint32_t i)
{
    return b->marks[i / 8] >> i % 8 & 1;
}

static inline void pending_rows_mark_set(struct pending_rows *b, uint32_t i)
{
    b->marks[i / 8] = (uint8_t)(b->marks[i / 8] | 1u << i % 8);
}

static inline struct shard_entry *shard_entry_at(const struct shard *s, uint32_t id)
{
    return id < s->n_tables ? s->tables[id] : NULL;
}

/* The consistency mode of a table for a job: the table's own, or the job's. */
static inline enum table_spec_mode shard_mode_of(const struct shard_entry *entry,
                                                 const struct job *job)
{
    return entry->table.spec.mode == TABLE_SPEC_MODE_JOB ? job->mode : entry->table.spec.mode;
}

/* How many times a row's own cost it takes to encode it. */
static inline uint64_t shard_codec_cost(enum codec_id codec)
{
    return codec == CODEC_TOPK ? SHARD_TOPK_COST : 1;
}

#endif
