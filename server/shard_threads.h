/* The threads of a node's shards, all together. */
#ifndef SERVER_SHARD_THREADS_H
#define SERVER_SHARD_THREADS_H

#include "server/shard_thread.h"

/* `first`: of the first shard; the others have the next numbers. *ret: n of them, the caller's to free after
 * shard_threads_end(); none runs after a failure. */
int shard_threads_start(const struct shard_thread_config *first, uint32_t n,
                        struct shard_thread ***ret, struct err *err) ON_MAIN MUST_CHECK;

/* shard_thread_serve() of each, or shard_thread_drain(). */
void shard_threads_serve(struct shard_thread **shards, uint32_t n) ON_MAIN;
void shard_threads_drain(struct shard_thread **shards, uint32_t n) ON_MAIN;

/* Ends their loops, and waits for all of them. */
void shard_threads_end(struct shard_thread **shards, uint32_t n) ON_MAIN;

#endif
