/* What a replica is made of, for replica_tables.c (life, tables), replica_push.c and replica_rows.c
 * (rows held, pulled, read): together they are behind replica.h. */
#ifndef WORKER_MIRROR_REPLICA_STATE_H
#define WORKER_MIRROR_REPLICA_STATE_H

#include "common/buf.h"
#include "server/core/shard.h"
#include "worker/client/encode.h"
#include "worker/mirror/gone.h"
#include "worker/mirror/replica.h"
#include "worker/mirror/room.h"

#define REPLICA_NO_TABLE UINT32_MAX
#define REPLICA_JOB "replica" /* of the only worker */
/* Touches of a row that is held: a push makes rows with fewer, by which they are told apart. */
#define REPLICA_TOUCHES 2u
/* Of a row, beside its own bytes: its place in the index, half filled. */
#define REPLICA_INDEX_BYTES 11u

/* One table of one shard. */
struct replica_part {
    struct room room;
    bool counted;  /* the server has said where its count stands */
    bool complete; /* whatever row the server has is held, or has gone */
};

/* The copy of one of the servers' shards. */
struct replica_shard {
    struct shard *shard;                      /* owned; NULL: no table is covered yet */
    struct replica_part parts[PS_TABLES_MAX]; /* by the shard's number */
    uint64_t seq;
    uint64_t n_bytes; /* of rows that may go */
};

struct replica_table {
    struct table_spec spec;
    uint32_t id; /* in every shard; REPLICA_NO_TABLE: not covered */
    uint32_t row_bytes;
};

struct replica {
    struct replica_options options;
    struct replica_shard *shards; /* owned, n_shards */
    struct replica_table tables[PS_TABLES_MAX];
    uint32_t n_tables;
    struct encoder *encoder; /* owned: of replica_read() */
    struct gone gone;
    struct push push;   /* scratch */
    struct pull *pulls; /* owned, as all below: scratch of replica_read(), n_shards */
    struct buf *bufs, answer;
};

/* A row that the server may have is not held any more. */
static inline void replica_note_gone(struct replica *r, const struct table_spec *spec,
                                     uint64_t key)
{
    gone_add(&r->gone, key ^ spec_salt(spec));
}

#endif
