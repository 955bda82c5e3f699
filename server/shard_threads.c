#include "server/shard_threads.h"

#include <stdlib.h>

#include "common/memory.h"

int shard_threads_start(const struct shard_thread_config *first, uint32_t n,
                        struct shard_thread ***ret, struct err *err)
{
    struct shard_thread **shards = memory_alloc(n * sizeof(struct shard_thread *));
    struct shard_thread_config config = *first;

    for (uint32_t i = 0; i < n; i++) {
        int status;

        config.index = i;
        config.core.shard = first->core.shard + i;
        status = shard_thread_start(&config, &shards[i], err);
        if (status) {
            shard_threads_end(shards, i);
            free(shards);
            return status;
        }
    }
    *ret = shards;
    return 0;
}

void shard_threads_serve(struct shard_thread **shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        shard_thread_serve(shards[i]);
}

void shard_threads_drain(struct shard_thread **shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        shard_thread_drain(shards[i]);
}

void shard_threads_end(struct shard_thread **shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        shard_thread_stop(shards[i]);
    for (uint32_t i = 0; i < n; i++)
        shard_thread_join(shards[i]);
}
