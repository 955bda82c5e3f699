/*
 * Lock-step clocks in slices, for whoever drives a shard (bsp.c). A clock whose rows cost more than a slice (shard.h)
 * is combined in slices, after the push under way; no large push begins meanwhile. The push that completes it is
 * answered when its last row has changed.
 */
#ifndef SERVER_CORE_LOCK_STEP_H
#define SERVER_CORE_LOCK_STEP_H

#include "server/core/shard.h"

/* True: lock_step_more() has something to do, also where no push is under way. */
bool lock_step_is_combining(const struct shard *s) ON_SHARD;
void lock_step_more(struct shard *s) ON_SHARD;

/* True once for each clock whose last row has changed in slices: parked pulls may be ready. */
bool lock_step_has_combined(struct shard *s) ON_SHARD;

/* All clocks that are complete are combined at once: before tables change, before the daemon stops. */
void lock_step_finish(struct shard *s) ON_SHARD;

#endif
