/*
 * A fuzzy scan of a live shard, for a checkpoint. The small state is copied at one moment; the rows
 * follow, a slice at a time between requests, so rows are read at different moments. With the events from
 * the first moment on (shard_events.h) the scan is exact, because each row has a version (replay.h).
 *
 *     at one moment    version, step counts, membership, heads of held pushes; the end of each table
 *     STATE            membership and held pushes as bytes (snapshot_meta.h), in pieces
 *     GONE             of a delta: keys of rows removed between its base and its first moment
 *     ROWS             key u64, stamp u64 (row.h; without flags), payload; table by table, by number
 *     DONE
 *
 * Rows come and go during a scan. A row created after the first moment is in an event, and may or may not
 * be read. A removed row is in an event; it may have been read before. A row that was removed and created
 * again at another number may be read twice; the later copy counts. So a finished scan is a checkpoint
 * only together with the events from its first moment to its end.
 *
 * A delta has the rows changed since the last scan that was kept, and the removed keys. To load base and
 * deltas, in order: remove each one's removed keys, then put its rows in place.
 */
#ifndef SERVER_CORE_SNAPSHOT_SCAN_H
#define SERVER_CORE_SNAPSHOT_SCAN_H

#include "server/core/shard.h"

/* A good size of a slice: of rows up to TABLE_SPEC_DIM_MAX wide it holds one at least. */
#define SNAPSHOT_SCAN_BYTES (256u << 10)

struct snapshot_scan;

enum snapshot_scan_mode { SNAPSHOT_SCAN_FULL, SNAPSHOT_SCAN_DELTA };
enum snapshot_scan_what {
    SNAPSHOT_SCAN_STATE,
    SNAPSHOT_SCAN_GONE,
    SNAPSHOT_SCAN_ROWS,
    SNAPSHOT_SCAN_DONE
};
enum snapshot_scan_end { SNAPSHOT_SCAN_KEPT, SNAPSHOT_SCAN_DROPPED };

struct snapshot_scan_facts {
    uint64_t version;           /* the shard's at the first moment */
    uint64_t base;              /* of a delta: its base's version */
    uint32_t n_tables;          /* ids, also those of dropped tables */
    uint64_t state_bytes;       /* of all pieces */
    uint64_t n_numbers, n_seen; /* row numbers: in all, and examined; for progress */
};

struct snapshot_scan_slice {
    enum snapshot_scan_what what;
    uint32_t table_id; /* GONE, ROWS */
    uint32_t n_items;  /* keys u64, in the machine's order; rows */
    size_t n_bytes;
};

/* True if the next scan may be a delta: a scan was kept, and not too many rows were removed since. */
bool snapshot_scan_may_be_delta(const struct shard *s) ON_SHARD;

/* The first moment: the scan needs the events from here on. One scan at a time. -EAGAIN: a push or
 * clock in slices changes rows, so ask again after its next slice; -EINVAL: a delta is not possible; -ENOMEM. */
int snapshot_scan_begin(struct shard *s, enum snapshot_scan_mode mode,
                        struct snapshot_scan **ret) ON_SHARD MUST_CHECK;

void snapshot_scan_facts(const struct snapshot_scan *w, struct snapshot_scan_facts *ret);

/* The table's step count at the first moment; id < n_tables. */
uint64_t snapshot_scan_n_pushes(const struct snapshot_scan *w, uint32_t id);

/* The size that the next slice needs: SNAPSHOT_SCAN_BYTES, or of a table of longer rows one of them with its head. And
 * the largest that a slice of a scan which begins now can need. */
size_t snapshot_scan_slice_bytes(const struct shard *s, const struct snapshot_scan *w) ON_SHARD;
size_t snapshot_scan_bytes_max(const struct shard *s) ON_SHARD;

/* Reads one slice into dst of dst_bytes, which has space for a row and its head. A slice of a delta may be empty.
 * Costs about as much as its bytes and SNAPSHOT_SCAN_HEADS row heads. */
#define SNAPSHOT_SCAN_HEADS 8192u
void snapshot_scan_more(struct shard *s, struct snapshot_scan *w, uint8_t *dst,
                        size_t dst_bytes, struct snapshot_scan_slice *ret) ON_SHARD;

/* Ends and frees the scan. KEPT, after DONE: the checkpoint is durable, and the base of the next delta.
 * DROPPED, at any time: the next scan must be full. */
void snapshot_scan_end(struct shard *s, struct snapshot_scan *w, enum snapshot_scan_end how)
    ON_SHARD;

#endif
