/*
 * What a shard is made of, for the files behind shard.h: shard_tables.c (life, tables),
 * shard_pull.c, shard_push.c, and below these shard_section.c (a section held against its
 * table), shard_rows.c (finding, making and changing rows), shard_lockstep.c (pushes that wait
 * for their clock), shard_combine.c (a clock that is complete).
 *
 * Invariants:
 *   1. Every row's key routes to this shard; a dense table's keys are below n_blocks.
 *   2. No NaN and no Inf that a peer sent reaches a row.
 *   3. A worker's last_seq is the number of its last judged push; all before it are judged too.
 *   4. held_bytes is the sum of n_bytes over all held pushes of all queues.
 */
#ifndef SERVER_CORE_SHARD_STATE_H
#define SERVER_CORE_SHARD_STATE_H

#include "common/buf.h"
#include "proto/codec_catalog.h"
#include "server/core/optim_catalog.h"
#include "server/core/shard.h"

#define SHARD_SCRATCH_KEEP_BYTES ((size_t)16 << 20) /* of each scratch buffer, between calls */

/* A table and what its specification means to this shard. */
struct shard_entry {
    struct shard_table table;
    const struct optim *optim; /* static */
    uint64_t salt;             /* for route_shard() */
    uint64_t key_end;          /* dense: number of blocks; sparse: 0, any key */
    uint64_t mark;             /* s->mark of the last push that named it */
};

/* The rows of one table that a push is about to change. */
struct shard_rows {
    struct shard_entry *entry;
    const uint64_t *keys; /* n_keys ascending; borrowed, like rows, from the shard's scratch */
    struct row **rows;    /* NULL: not there */
    uint32_t n_keys;
    uint64_t n_new; /* of those that are not there so many may be made: there is room */
};

/* A section of a push under judgement. */
struct shard_part {
    const struct section *section;
    const struct codec *codec;
    size_t row_bytes;
    bool waits; /* a gradient of a lock-step table: held until its clock is complete */
    struct shard_rows rows;
};

struct shard_queue; /* shard_lockstep.c */

struct shard {
    struct shard_config config;
    struct roster *roster;                          /* owned */
    struct shard_entry *tables[SHARD_N_TABLES_MAX]; /* owned, by id */
    uint32_t n_tables;
    uint32_t n_bsp_tables; /* whose own mode is lock step, whatever the job's */
    uint64_t version;
    uint64_t mark;   /* counts pushes looked at */
    uint64_t n_gone; /* of the roster, when pulls were last told to look again */
    struct shard_counters counters;
    struct shard_refusal refusal;
    struct shard_queue *queues; /* owned */
    uint64_t held_bytes;

    /* Scratch of one call: grows to what it needs; what is large goes with the call. */
    struct buf keys, rows, contributions, batches;
    struct shard_part parts[SECTIONS_MAX];
    float *gradient, *values; /* owned; SPEC_DIM_MAX each */
};

/* Room for n items at the beginning of a scratch buffer, or NULL. What was there is lost. */
static inline void *shard_scratch(struct buf *b, uint64_t n, size_t item_bytes)
{
    return buf_reserve(b, (size_t)n * item_bytes);
}

/* Gives back what a rare large message has made the scratch grow to. */
static inline void shard_scratch_trim(struct shard *s)
{
    struct buf *all[] = { &s->keys, &s->rows, &s->contributions, &s->batches };

    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i]->cap_bytes > SHARD_SCRATCH_KEEP_BYTES)
            buf_deinit(all[i]);
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

/* Rows and their index, of all tables together. */
static inline uint64_t shard_tables_bytes(const struct shard *s)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < s->n_tables; i++)
        n_bytes += table_bytes(s->tables[i]->table.rows);
    return n_bytes;
}

#endif
