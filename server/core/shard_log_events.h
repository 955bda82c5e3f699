/*
 * Emits the shard's redo events (shard_events.h), and notes the keys of rows removed since the last scan, which a delta
 * needs (snapshot_scan.h). Removed rows are collected, and emitted before the event that caused them.
 */
#ifndef SERVER_CORE_SHARD_LOG_EVENTS_H
#define SERVER_CORE_SHARD_LOG_EVENTS_H

#include "server/core/shard_internal.h"

/* Removed keys noted between two scans, of all tables: 8 MiB. Beyond that the next checkpoint is a full one. */
#define SHARD_GONE_MAX (UINT64_C(1) << 20)

/* Reserves log space for a push that will end with `status`. -EAGAIN, -ENOMEM: it must not. */
int shard_log_events_reserve(const struct shard *s, const struct worker *worker,
                             const struct push *push, int status) MUST_CHECK;
void shard_log_events_push(struct shard *s, const struct worker *worker,
                           const struct push *push, int status);

/* The row is removed now. */
void shard_log_events_gone(struct shard *s, struct shard_entry *entry, struct row *row);

/* The row has these touches and flags from now on; no push has changed it. */
void shard_log_events_touches(struct shard *s, const struct shard_entry *entry, struct row *row,
                              uint32_t touches, uint32_t flags);

/* Of keys[0 .. n), n at most SHARD_CHUNK_MAX, those whose rows[i] is NULL got no row from `version`. */
void shard_log_events_left(struct shard *s, const struct shard_entry *entry, uint64_t version,
                           const uint64_t *keys, uint32_t n, struct row *const *rows);

/* Emits the collected rows. */
void shard_log_events_rows(struct shard *s);

/* Drops the noted keys, and notes removed keys from now on. */
void shard_log_events_reset(struct shard *s);

#endif
