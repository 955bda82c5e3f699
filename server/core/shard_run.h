/*
 * A push on its way through its phases (shard_state.h), in chunks of rows. What it does and
 * leaves does not depend on how it is cut into slices, but for who is asked first for room when
 * a budget is full or a key is not admitted yet.
 */
#ifndef SERVER_CORE_SHARD_RUN_H
#define SERVER_CORE_SHARD_RUN_H

#include "server/core/shard_state.h"

/* Is one slice not enough? */
bool shard_run_is_large(const struct shard *s, const struct push *push);

/* Whose turn it is has been asked. */
void shard_run_begin(struct shard *s, struct shard_run *run, struct worker *worker,
                     const struct push *push);

/* Goes on for about so many bytes of rows (shard_row_cost()), or until it is judged. */
void shard_run_more(struct shard *s, struct shard_run *run, uint64_t n_bytes);

/* Is it between its beginning and its verdict? */
static inline bool shard_run_is_under_way(const struct shard_run *run)
{
    return run->phase != SHARD_IDLE && run->phase != SHARD_JUDGED;
}

/* The verdict has been told. */
void shard_run_end(struct shard_run *run);

void shard_run_deinit(struct shard_run *run);

#endif
