/*
 * What a shard is made of, for the files behind shard.h: shard_tables.c (life, tables),
 * shard_push.c and shard_run.c (a push and its way), shard_pull.c and shard_read.c (a pull and its
 * rows), and below these shard_section.c (a section held against its table), shard_lockstep.c
 * (pushes that wait for their clock), shard_combine.c (a clock that is complete), shard_change.c
 * (rows changed), shard_grow.c (does a key get a row?), shard_rows.c (rows still to be changed),
 * shard_tell.c (what a journal is told). shard_walk.h and shard_replay.h are interfaces of their own.
 *
 * Invariants:
 *   1. Every row's key routes to this shard; a dense table's keys are below n_blocks.
 *   2. No NaN and no Inf that a peer sent reaches a row.
 *   3. A worker's last_seq is the number of its last judged push; all before it are judged too.
 *   4. held_bytes is the sum of n_bytes over all held pushes of all queues.
 *   5. A row that a push which has taken effect has still to change is not removed, and nobody sees
 *      it before it is changed.
 */
#ifndef SERVER_CORE_SHARD_STATE_H
#define SERVER_CORE_SHARD_STATE_H

#include "common/buf.h"
#include "proto/codec_catalog.h"
#include "proto/keys.h"
#include "server/core/optim_catalog.h"
#include "server/core/shard.h"
#include "server/core/shard_journal.h"
#include "server/core/shard_turnover.h"

#define SHARD_SCRATCH_KEEP_BYTES ((size_t)1 << 20) /* of each scratch buffer, between calls */
#define SHARD_KEY_COST 128u /* bytes of a slice, at least, that a key takes */
#define SHARD_CHUNK_MAX 128u

/* A table and what its specification means to this shard. */
struct shard_entry {
    struct shard_table table;
    const struct optim *optim; /* static */
    uint64_t salt;             /* for route_shard() */
    uint64_t key_end;          /* dense: number of blocks; sparse: 0, any key */
    uint64_t mark;             /* s->mark of the last push that named it */
    struct budget budget;      /* of its rows, index and sketch; parent: the shard's */
    struct shard_turnover turnover;
    struct shard_rows *changing; /* by pushes that have taken effect; borrowed */
    struct buf gone; /* owned: keys of rows that went since the last cut (shard_tell.h) */
};

/* The rows of one table that a push changes, in the order of their keys. The arrays are scratch
 * of whoever works on them. */
struct shard_rows {
    struct shard_entry *entry;
    struct shard_rows *next; /* in entry->changing */
    uint64_t *keys;          /* n_keys ascending */
    uint8_t *marks; /* a bit for each that was changed before its turn; NULL where none is */
    uint32_t n_keys, n_done;
};

/* A section of a push under judgement. */
struct shard_part {
    const struct section *section;
    const struct codec *codec;
    size_t row_bytes; /* as encoded */
    bool waits;       /* a gradient of a lock-step table: held until its clock is complete */
    struct shard_rows rows;    /* rows.n_done: those that the phase is through with */
    struct keys_reader reader; /* of the section's keys */
    struct optim_step step;    /* of a gradient, once the push applies */
};

/* What is wrong with a push, and where. */
struct shard_fault {
    struct err err;
    const struct shard_entry *entry; /* NULL: the push as a whole */
    uint64_t key;
};

/*
 * A push on its way, in slices:
 *
 *     IDLE     no push
 *     CHECK    keys and values are held against the tables
 *     APPLY    it has taken effect: version, number, tick are given; rows are found or made,
 *              and change, in any order
 *     JUDGED   `result` says how
 *
 * A fault in CHECK leads to JUDGED, with nothing left behind but the refusal. In APPLY there is
 * none: a key of a sparse table for which there is no memory gets no row, and is counted.
 */
enum shard_phase { SHARD_IDLE, SHARD_CHECK, SHARD_APPLY, SHARD_JUDGED };

struct shard_held; /* shard_combine.h */

struct shard_run {
    enum shard_phase phase;
    const struct push *push; /* borrowed, like the worker */
    struct worker *worker;
    uint32_t part; /* the phase is at this one of push->n_sections */
    struct shard_part parts[SECTIONS_MAX];
    uint64_t version;        /* of the rows that it changes */
    struct shard_held *held; /* between its copy and its place in the queue: owned */
    struct shard_fault fault;
    int status; /* shard_push()'s */
    struct shard_push_result result;
    struct buf keys, marks; /* owned: the parts' arrays */
};

struct shard_queue; /* shard_lockstep.h */
struct shard_again; /* shard_again.h */
struct shard_walk;  /* shard_walk.h */
struct shard_look_push;

/* Rows that went or were aged and are still to be told of, all of one table (shard_tell.h). */
struct shard_telling {
    const struct shard_entry *entry;
    uint32_t n_gone, n_aged;
    uint64_t gone[SHARD_EVENT_ROWS_MAX], aged[SHARD_EVENT_ROWS_MAX];
    uint8_t touches[SHARD_EVENT_ROWS_MAX];
};

/* What a delta is a delta to (shard_walk.h). */
struct shard_base {
    bool counts;      /* rows that go are noted, since the last cut or the walk under way */
    bool is_there;    /* there is a cut, and all that has gone since is known */
    uint64_t version; /* of that cut */
    uint64_t n_gone;  /* noted, of all tables */
};

struct shard {
    struct shard_config config;
    struct roster *roster;                          /* owned */
    struct shard_entry *tables[SHARD_N_TABLES_MAX]; /* owned, by id */
    uint32_t n_tables;
    uint32_t n_bsp_tables; /* whose own mode is lock step, whatever the job's */
    struct budget budget;  /* rows, index and sketches of all tables */
    uint32_t sweeps_table; /* whose turn it is (shard_sweep.h) */
    uint64_t version;
    uint64_t mark;   /* counts pushes looked at */
    uint64_t n_gone; /* of the roster, when pulls were last told to look again */
    struct shard_counters counters;
    struct shard_refusal refusal;
    struct shard_queue *queues;       /* owned */
    struct shard_queue *spare_queues; /* owned: of no pushes, for jobs to come */
    uint64_t held_bytes;
    struct shard_held *spare_held; /* owned: let go, for pushes to come */
    uint64_t spare_held_bytes;     /* theirs */

    struct shard_look_push *pushes; /* owned: SHARD_LOOK_PUSHES, by version (shard_look.h) */

    const struct shard_journal *journal; /* borrowed; NULL: none */
    struct shard_telling telling;
    struct shard_again *again; /* borrowed; a journal is being replayed, else NULL */
    struct shard_base base;
    struct shard_walk *walk; /* the one under way, borrowed, or NULL */

    /* small: pushes that are judged in one call; large: the one that goes on in slices. */
    struct shard_run small, large;

    /* Scratch of one call: grows to what it needs; what is large goes with the call. */
    struct buf keys, contributions, batches;
    float *gradient, *values; /* owned; SPEC_DIM_MAX each */
};

/* Room for n items at the beginning of a scratch buffer, or NULL. What was there is lost. */
static inline void *shard_scratch(struct buf *b, uint64_t n, size_t item_bytes)
{
    return buf_reserve(b, (size_t)n * item_bytes + 1);
}

/* Gives back what a rare large message has made scratch grow to. */
static inline void shard_trim(struct buf *b)
{
    if (b->cap_bytes > SHARD_SCRATCH_KEEP_BYTES)
        buf_deinit(b);
}

static inline bool shard_mark_is_set(const struct shard_rows *b, uint32_t i)
{
    return b->marks[i / 8] >> i % 8 & 1;
}

static inline void shard_mark_set(struct shard_rows *b, uint32_t i)
{
    b->marks[i / 8] = (uint8_t)(b->marks[i / 8] | 1u << i % 8);
}

/* What a row costs of a slice, SHARD_SLICE_BYTES: its bytes, or as many as its key is worth. */
static inline uint32_t shard_row_cost(const struct shard_entry *entry)
{
    uint32_t n_bytes = (uint32_t)sizeof(struct row) + entry->table.payload_bytes;

    return n_bytes > SHARD_KEY_COST ? n_bytes : SHARD_KEY_COST;
}

/* Rows that are worked on together: they stay in the cache from one step to the next. */
static inline uint32_t shard_chunk(const struct shard_entry *entry)
{
    uint32_t n = SHARD_SLICE_BYTES / 16 / shard_row_cost(entry);

    return n < 1 ? 1 : n < SHARD_CHUNK_MAX ? n : SHARD_CHUNK_MAX;
}

static inline struct shard_entry *shard_entry_at(const struct shard *s, uint32_t id)
{
    return id < s->n_tables ? s->tables[id] : NULL;
}

/* How consistent a table is for a job: as it says itself, or as the job does. */
static inline enum spec_mode shard_mode_of(const struct shard_entry *entry,
                                           const struct job *job)
{
    return entry->table.spec.mode == SPEC_MODE_JOB ? job->mode : entry->table.spec.mode;
}

#endif
