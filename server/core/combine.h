/*
 * The arithmetic of one lock-step clock (bsp.h): the union of the keys of its pushes, and for each of these rows the
 * weighted sum and one step of the optimizer. All memory is reserved before; nothing here fails then.
 *
 *     combine_reserve  combine_gather  combine_keys ...      nothing of the shard has changed
 *     combine_begin                                          it takes effect: rows are awaited (pending_rows.h)
 *     combine_rows ...                                       they change
 *
 * combine_keys() and combine_rows() go on for about so many bytes of a slice, which are about nanoseconds. Bits do not
 * depend on where they stop.
 */
#ifndef SERVER_CORE_COMBINE_H
#define SERVER_CORE_COMBINE_H

#include "server/core/shard_internal.h"

struct bsp_held;
struct bsp_queue;
struct contribution;

/* The rows of one table. */
struct combine_batch {
    struct pending_rows rows;
    struct contribution *contributions; /* to this table, n of them, in order */
    uint32_t n_contributions;
    uint64_t value_bytes; /* of a row of each of them */
    struct optimizer_step step;
};

enum combine_phase {
    COMBINE_IDLE,
    COMBINE_DECODE, /* the contributions' keys */
    COMBINE_MERGE,  /* these, into the batches */
    COMBINE_READY,  /* to take effect */
    COMBINE_APPLY,  /* it has, and the rows change */
    COMBINE_END     /* they have; memory is still to be freed */
};

/* All that one clock is made of. The arrays are scratch. */
struct combine {
    enum combine_phase phase;
    struct contribution *contributions; /* sorted by (table, order) */
    uint32_t n_contributions;
    struct combine_batch *batches;
    uint32_t n_batches;
    uint32_t at;      /* the contribution or the batch that the phase is at */
    uint64_t n_keys;  /* that there is space for */
    uint64_t *merged; /* the batches' keys; behind n_keys of them those of the contributions */
    uint64_t version;
    struct bytes of_contributions, of_batches, of_keys, of_marks; /* owned */

    /* Of a clock in slices: whose it is. */
    struct bsp_queue *queue; /* borrowed, until it takes effect */
    const struct job *job;   /* borrowed; may have begun another run */
    uint64_t run, clock;
    struct bsp_held *held; /* owned, from then on: its pushes */
};

/* Scratch for all pushes of the clock of `first`. -ENOMEM: nothing is left. */
int combine_reserve(struct combine *w, const struct bsp_held *first, bool in_slices) MUST_CHECK;

/* Those that count, which are sorted by (rank, seq) and hold one incarnation of each rank. */
void combine_gather(const struct shard *s, struct combine *w, const struct bsp_held *first);

/* To COMBINE_READY, if n_bytes are enough. Returns what was used. */
uint64_t combine_keys(struct combine *w, uint64_t n_bytes);

/* To COMBINE_APPLY: one step of each table, in the shard's version. What is under way has to change the batches' rows
 * before (push_apply_first()). */
void combine_begin(struct shard *s, struct combine *w, uint64_t run, uint64_t clock);

/* To COMBINE_END, in slices. */
uint64_t combine_rows(struct shard *s, struct combine *w, uint64_t n_bytes);

/* Of a push to those rows which overtakes: those of these ascending keys that have still to change. */
void combine_rows_first(struct shard *s, struct combine *w, const struct shard_entry *entry,
                        const uint64_t *keys, uint32_t n_keys);

/* To COMBINE_IDLE; gives back what a rare large clock took. True: some of it is left for the next call. */
bool combine_trim(struct combine *w);

void combine_deinit(struct combine *w);

#endif
