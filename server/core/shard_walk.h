/*
 * A walk reads a shard while it goes on, for a checkpoint: what is small at one moment, then the rows,
 * a slice at a time between requests. It is fuzzy: rows are read at different moments. Together with the
 * events from its first moment on (shard_journal.h) it is exact, as each row knows its version
 * (shard_replay.h).
 *
 *     at one moment    version, step counts, roster, heads of held pushes; where each table ends
 *     STATE            roster and held pushes as bytes (shard_held_bytes.h), in pieces
 *     GONE             of a delta: keys of rows that went between its base and its first moment
 *     ROWS             key u64, stamp u64 (row.h; without flags), payload; table by table, by number
 *     DONE
 *
 * Rows come and go meanwhile. One that came after the first moment is in an event, and may or may not
 * be read. One that went is in an event; it may have been read before. Where it went and came back at
 * another number it may be read twice, the newer later: the last one counts. So a walk that is done
 * needs the events from its first moment to its end; only with these is it a checkpoint.
 *
 * A delta has the rows that were changed since the walk before it that was kept, and the keys that
 * went. Of base and deltas, in this order, each: first the keys that went are taken away, then its
 * rows put in place.
 */
#ifndef SERVER_CORE_SHARD_WALK_H
#define SERVER_CORE_SHARD_WALK_H

#include "server/core/shard.h"

/* What a slice of any shard has room in; a row and its head have to have room at least. */
#define SHARD_WALK_BYTES (256u << 10)

struct shard_walk;

enum shard_walk_mode { SHARD_WALK_FULL, SHARD_WALK_DELTA };
enum shard_walk_what { SHARD_WALK_STATE, SHARD_WALK_GONE, SHARD_WALK_ROWS, SHARD_WALK_DONE };
enum shard_walk_end { SHARD_WALK_KEPT, SHARD_WALK_DROPPED };

struct shard_walk_facts {
    uint64_t version; /* the shard's at the first moment */
    uint64_t base;    /* of a delta: its base's version */
    uint32_t n_tables;
    uint64_t state_bytes; /* of all pieces */
    uint64_t n_numbers,
        n_seen; /* row numbers in all: there are, looked at; for who shows progress */
};

struct shard_walk_slice {
    enum shard_walk_what what;
    uint32_t table_id; /* GONE, ROWS */
    uint32_t n_items;  /* keys u64, in the machine's order; rows */
    size_t n_bytes;
};

/* May the next walk be a delta? Not before one was kept, and not when too many rows went since. */
bool shard_walk_may_be_delta(const struct shard *s) ON_SHARD;

/* The first moment: from the next event on the journal belongs to this walk. One at a time. -EAGAIN: a
 * push in slices has taken effect and is not through: ask again after a slice of it; -EINVAL: a delta
 * that may not be; -ENOMEM. */
int shard_walk_begin(struct shard *s, enum shard_walk_mode mode, struct shard_walk **ret)
    ON_SHARD MUST_CHECK;

void shard_walk_facts(const struct shard_walk *w, struct shard_walk_facts *ret);

/* The table's step count at the first moment; id < n_tables. Its specification never changes. */
uint64_t shard_walk_n_pushes(const struct shard_walk *w, uint32_t id);

/* One slice, into dst of dst_bytes, for which SHARD_WALK_BYTES is a good size. A slice may be empty: of a delta many
 * rows are looked at for few. Costs about what its bytes and SHARD_WALK_LOOKS row heads cost. */
#define SHARD_WALK_LOOKS 8192u
void shard_walk_more(struct shard *s, struct shard_walk *w, uint8_t *dst, size_t dst_bytes,
                     struct shard_walk_slice *ret) ON_SHARD;

/* KEPT: after DONE, it is safe, and the base of the next delta. DROPPED: at any time; the next walk has
 * to be a full one. Frees it. */
void shard_walk_end(struct shard *s, struct shard_walk *w, enum shard_walk_end how) ON_SHARD;

#endif
