/*
 * The recorded decisions of events, for their replay (replay.h). A replayed push or clock changes only rows that are
 * older than it, makes rows except for keys that got none, and uses neither budgets nor sketches.
 *
 *     rows of a push or clock that is still to come          wait here
 *     the push or clock comes                                 those that went go, and are aged; it is
 *                                                             applied without the keys that are left
 *     it does not come                                        none of it has happened
 */
#ifndef SERVER_CORE_REPLAY_DECISIONS_H
#define SERVER_CORE_REPLAY_DECISIONS_H

#include "server/core/shard_internal.h"

struct replay_decisions_key {
    uint32_t table_id;
    uint8_t op, touches; /* enum shard_rows_op */
    uint64_t key;
};

struct replay_decisions {
    struct bytes waiting; /* owned: struct replay_decisions_key, of version s->version + 1 */
    int status;           /* -ENOMEM: a row could not be made */
};

/* A replay begins; it ends (also where none has begun). */
void replay_decisions_start(struct shard *s);
void replay_decisions_stop(struct shard *s);

/* One row event. PS_ECORRUPT: no such table, or of a version beyond the next; -ENOMEM. */
int replay_decisions_receive(struct shard *s, const struct shard_event *event) MUST_CHECK;

/* The push or clock of these decisions is about to change rows. */
void replay_decisions_begin(struct shard *s);
/* It has. */
void replay_decisions_end(struct shard *s);

/* True if this key got no row. */
bool replay_decisions_is_left(const struct shard *s, const struct shard_entry *entry,
                              uint64_t key);

#endif
