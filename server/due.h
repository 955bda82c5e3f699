/* When a checkpoint is due by itself: by the clock, by the length of the logs, or as a log lacks records. */
#ifndef SERVER_DUE_H
#define SERVER_DUE_H

#include "server/keeper.h"
#include "server/settings.h"

struct due {
    const struct settings *settings; /* borrowed, like the shards: settings->shards of them */
    struct shard_thread *const *shards;
    uint64_t since_ms;    /* monotonic: when the node began to serve */
    uint64_t found_bytes; /* of logs that the start has read behind its checkpoint */
    uint64_t log_bytes;   /* those written when the last checkpoint that succeeded was due, */
    uint64_t tried_bytes; /* and when the last one was */
    uint64_t n_done;      /* checkpoints that had succeeded then */
    uint64_t tried_ms;    /* when one was due as a log was long, or had a gap */
};

/* Nothing is under way, and the next one is due. */
bool due_now(struct due *d, const struct keeper *k, uint64_t now_ms) ON_MAIN;

#endif
