/*
 * What a shard's log is told (shard_events.h), and the keys of rows that have gone since the last
 * cut, which a delta needs (snapshot_scan.h). Rows are gathered, and told before whatever they were done
 * for.
 */
#ifndef SERVER_CORE_SHARD_LOG_EVENTS_H
#define SERVER_CORE_SHARD_LOG_EVENTS_H

#include "server/core/shard_internal.h"

/* Noted between two cuts, of all tables: 8 MiB. Beyond that the next checkpoint is a full one. */
#define SHARD_GONE_MAX (UINT64_C(1) << 20)

/* Room in the log for a push that is about to be judged so; -EAGAIN, -ENOMEM: it is not. */
int shard_log_events_reserve(const struct shard *s, const struct worker *worker,
                             const struct push *push, int status) MUST_CHECK;
void shard_log_events_push(struct shard *s, const struct worker *worker,
                           const struct push *push, int status);

/* The row goes, now. */
void shard_log_events_gone(struct shard *s, struct shard_entry *entry, struct row *row);

/* The row has these touches and flags from now on; no push has changed it. */
void shard_log_events_touches(struct shard *s, const struct shard_entry *entry, struct row *row,
                              uint32_t touches, uint32_t flags);

/* Of keys[0 .. n), n at most SHARD_CHUNK_MAX, those whose rows[i] is NULL got none from `version`. */
void shard_log_events_left(struct shard *s, const struct shard_entry *entry, uint64_t version,
                           const uint64_t *keys, uint32_t n, struct row *const *rows);

/* What has been gathered. */
void shard_log_events_rows(struct shard *s);

/* Keys that have gone are forgotten; from now on they are noted. */
void shard_log_events_reset(struct shard *s);

#endif
