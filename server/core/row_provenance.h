/*
 * One row, for people: its content, its version, and the push that made the version. For this a shard remembers the
 * authors of its last ROW_PROVENANCE_PUSHES versions: a ring of values, one store for a push, made with the shard.
 */
#ifndef SERVER_CORE_ROW_PROVENANCE_H
#define SERVER_CORE_ROW_PROVENANCE_H

#include "server/core/shard.h"

#define ROW_PROVENANCE_PUSHES 65536u /* a power of two */

/* The author of a version. */
struct row_provenance_push {
    uint64_t version;
    uint64_t run; /* of the job (membership.h) */
    uint64_t clock, incarnation, seq;
    uint32_t rank;
    bool
        is_combined; /* a clock of lock step, of all its workers: rank, incarnation and seq say nothing */
};

struct row_provenance {
    uint32_t owner; /* the shard that keeps the key. Another than this: nothing below is set */
    const struct shard_table *table;
    const struct row *row; /* NULL: there is none */
    const struct row_provenance_push
        *push;       /* of the row's version; NULL: not among those remembered */
    const char *job; /* of that push; NULL: the job has given its place to another */
};

/* Pointers in *ret are borrowed until the shard is next called. PS_ENOTABLE; -ERANGE: a block that the dense table
 * does not have. */
int row_provenance_find(struct shard *s, const char *table, uint64_t key,
                        struct row_provenance *ret) ON_SHARD MUST_CHECK;

/* The shard's version has just become that of this push, or of this clock of a job's run. */
void row_provenance_note(struct shard *s, const struct worker *worker, const struct push *push);
void row_provenance_note_clock(struct shard *s, uint64_t run, uint64_t clock);

#endif
