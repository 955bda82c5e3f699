/*
 * A shard out of a walk (shard_walk.h) and the events since (shard_journal.h): the shard that told
 * them, bit for bit, wherever the events end.
 *
 *     shard_replay_begin       of a new shard; from here on no budget refuses anything
 *     shard_table_ask()        each table, in the order of ids
 *     shard_replay_row(_gone)  of a full walk, then of each delta on it: keys that went, rows; or
 *     shard_restore_rows, _gone  many at once, whose caller sees to it that all are this shard's
 *     shard_restore_counts()   of the last walk: step counts, version
 *     shard_replay_state       of the last walk: roster and held pushes
 *     shard_replay             each event from that walk's first moment on
 *     shard_replay_end         leases begin now
 *
 * Why a fuzzy walk becomes exact. Step counts, roster and held pushes are of one moment, and each event
 * from there on changes them once. A row was read at some moment after that, and each event before that
 * moment must not be seen again: a push or clock of version v changes rows below v only; rows go, and
 * get touches, only where their version is not above that of the event; touches are told as what they
 * become. Whoever has a newer version was made or changed since. An optimizer's step and the noise of
 * rounding are functions of the row, the bytes, and the step count, which is the live one.
 *
 * What is not in it: statistics; sketches, horizons and what else decides who comes and goes, which
 * begin anew as in a new shard (so from here on others may go than would have); a row's flags.
 *
 * A push in slices that had taken effect and was not through when the events end is applied whole; a
 * key of it that nobody had decided about has got a row.
 *
 * Any failure leaves a shard that is only good for shard_free(): -ENOMEM; PS_ECORRUPT with a sentence:
 * the event is not what can have happened to this shard. Events may hold anything, pointers apart.
 */
#ifndef SERVER_CORE_SHARD_REPLAY_H
#define SERVER_CORE_SHARD_REPLAY_H

#include "server/core/shard.h"

void shard_replay_begin(struct shard *s) ON_SHARD;

/* A row of a walk, or a key that went (0 also where it is not there). PS_ENOTABLE, PS_ECORRUPT (not
 * this shard's), -ENOMEM. */
int shard_replay_row(struct shard *s, uint32_t table_id, uint64_t key, uint64_t stamp,
                     const void *payload) ON_SHARD MUST_CHECK;
int shard_replay_row_gone(struct shard *s, uint32_t table_id, uint64_t key) ON_SHARD MUST_CHECK;

/* Once, behind the tables. From here on what goes is noted, so that the next walk may be a delta to this
 * one; with a full walk in between none is needed. */
int shard_replay_state(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
    ON_SHARD MUST_CHECK;

int shard_replay(struct shard *s, const struct shard_event *event, uint64_t now_ms,
                 struct err *err) ON_SHARD MUST_CHECK;

/* Have rows been told for a push or clock that has not come yet? Where the events end here they have not
 * happened; and whoever goes on with the journal has to take them out of it, or they would be taken for
 * those of the next push. */
bool shard_replay_waits(const struct shard *s) ON_SHARD;

/* Also without any event, also after a failure. Then: shard_listen(). */
void shard_replay_end(struct shard *s, uint64_t now_ms) ON_SHARD;

#endif
