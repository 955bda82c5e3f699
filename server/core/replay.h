/*
 * Builds a shard from a scan (snapshot_scan.h) and the events since (shard_events.h): bit for bit the
 * shard that recorded them, wherever the events end.
 *
 *     replay_begin             of a new shard; from here on no budget refuses anything
 *     shard_table_open()        each table, in the order of ids
 *     restore_gone, _rows      of a full scan, then of each delta on it: removed keys, rows (restore.h); the caller
 *                              checks that all belong to this shard
 *     restore_counts()         of the last scan: step counts, version
 *     replay_state             of the last scan: membership and held pushes
 *     shard_replay             each event from that scan's first moment on
 *     replay_end               leases begin now
 *
 * Why a fuzzy scan becomes exact. Step counts, membership and held pushes are of one moment, and each
 * later event changes them once. A row was read at some later moment, so replay must skip the events
 * before that moment. A push or clock of version v changes only rows below v. Rows are removed, or get
 * touches, only if their version is not above the event's; touches are recorded as new values. A row
 * with a newer version was created or changed later. An optimizer's step and the noise of rounding are
 * functions of the row, the bytes, and the step count.
 *
 * Not restored: statistics, a row's flags, and the inputs of admission and eviction (sketches, version
 * ages), which begin as in a new shard. Later evictions may therefore differ.
 *
 * A push or clock in slices that had taken effect but was not finished when the events end is applied whole. Its
 * keys without a recorded decision get rows.
 *
 * After any failure the shard is only good for shard_free(): -ENOMEM; PS_ECORRUPT with a sentence: the
 * event cannot have happened to this shard. Events may hold any values, except for pointers.
 */
#ifndef SERVER_CORE_REPLAY_H
#define SERVER_CORE_REPLAY_H

#include "server/core/shard.h"

void replay_begin(struct shard *s) ON_SHARD;

/* Once, after the tables. From here on removed keys are noted, so the next scan may be a delta to this
 * one. */
int replay_state(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
    ON_SHARD MUST_CHECK;

int shard_replay(struct shard *s, const struct shard_event *event, uint64_t now_ms,
                 struct err *err) ON_SHARD MUST_CHECK;

/* True if ROWS events were replayed for a push or clock that has not come. If the events end here, those
 * ROWS have not happened: a writer that continues the log must remove them, or replay would apply them to
 * the next push. */
bool replay_waits(const struct shard *s) ON_SHARD;

/* Those ROWS have not happened: they may come again. */
void replay_drop_rows(struct shard *s) ON_SHARD;

/* Also without any event, also after a failure. Then call shard_set_events(). */
void replay_end(struct shard *s, uint64_t now_ms) ON_SHARD;

#endif
