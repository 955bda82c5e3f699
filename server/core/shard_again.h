/*
 * What was decided when events happened, for those who apply them again (shard_replay.h): a push or a
 * clock then changes only rows that are older than it, makes rows but for keys that got none, and
 * asks neither budgets nor sketches.
 *
 *     rows told for a push or clock that is still to come     wait here
 *     the push or clock comes                                 those that went go, and are aged; it is
 *                                                             applied without the keys that are left
 *     it does not come                                        none of it has happened
 */
#ifndef SERVER_CORE_SHARD_AGAIN_H
#define SERVER_CORE_SHARD_AGAIN_H

#include "server/core/shard_state.h"

struct shard_again_key {
    uint32_t table_id;
    uint8_t op, touches; /* enum shard_rows_op */
    uint64_t key;
};

struct shard_again {
    struct buf waiting; /* owned: struct shard_again_key, of version s->version + 1 */
    int status;         /* -ENOMEM: a row could not be made */
};

/* A replay begins; it ends (also where none has begun). */
void shard_again_start(struct shard *s);
void shard_again_stop(struct shard *s);

/* One row event. PS_ECORRUPT: no such table, or of a version beyond the next; -ENOMEM. */
int shard_again_tell(struct shard *s, const struct shard_event *event) MUST_CHECK;

/* The push or clock that they were told for is about to change rows. */
void shard_again_begin(struct shard *s);
/* It has. */
void shard_again_end(struct shard *s);

/* Got this key no row? */
bool shard_again_is_left(const struct shard *s, const struct shard_entry *entry, uint64_t key);

#endif
