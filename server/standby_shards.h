/*
 * The shards as the standby's server sees them: orders to each of them (shard_thread_standby()), and how far the
 * standby is on them (struct fetch_view).
 */
#ifndef SERVER_STANDBY_SHARDS_H
#define SERVER_STANDBY_SHARDS_H

#include "server/replication/sync.h"
#include "server/shard_call.h"

struct standby_shards;

/* done: after standby_shards_ask(), once all have done it. */
struct standby_shards *standby_shards_new(const struct shard_call_config *config, uint32_t n,
                                          void (*done)(void *owner), void *owner);

/* The shards' threads have ended. NULL is fine. */
void standby_shards_free(struct standby_shards *s);

/* Nobody waits for it; in the order of calls. */
void standby_shards_order(struct standby_shards *s, enum shard_thread_standby what) ON_MAIN;

/* One at a time. SHARD_STANDBY_HOLD ends the fetches of the standby before. keep: of each shard, or NULL: all 0; else
 * as *standby. */
void standby_shards_ask(struct standby_shards *s, enum shard_thread_standby what,
                        const struct fetch_standby *standby, const uint64_t *keep) ON_MAIN;

bool standby_shards_is_busy(const struct standby_shards *s);

/* The newest records, as the last standby_shards_ask() found them. */
void standby_shards_last(const struct standby_shards *s, uint64_t *ret);

/* --- once the logs are open --- */

const struct fetch_view *standby_shards_view(const struct standby_shards *s, uint32_t shard);

/* The records that come next, before there was a standby: as the logs' ends were found. */
void standby_shards_next(const struct standby_shards *s, uint64_t *ret);

/* All of them; borrowed until the next call. */
const struct sync_shard *standby_shards_query(struct standby_shards *s);

/* The greatest that a standby has named; 0: none. */
uint64_t standby_shards_greater_term(const struct standby_shards *s);

/* So often a standby has found a row of its own that differs. */
uint64_t standby_shards_differences(const struct standby_shards *s);

void standby_shards_lag(const struct standby_shards *s, uint64_t *ret_records,
                        uint64_t *ret_ms);

#endif
