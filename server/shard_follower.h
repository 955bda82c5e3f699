/*
 * A standby's shard on its loop: asks its primary's shard for records, and follows them
 * (server/replication/follower.h).
 *
 *     state      meaning                                              leaves it by
 *     IDLE       nothing is asked for                                 shard_follower_start()
 *     DIALLING   a connection is opened, or the next try awaited      the primary's welcome
 *     FETCHING   one or two fetches are under way                     the connection's end -> FAILED
 *     FAILED     the connection has ended, or its records cannot be   shard_follower_stop()
 *                this shard's
 *
 * A fetch acknowledges all before it, and the primary's replies wait for that. The next one is sent as soon as a reply
 * is in memory, before it is replayed. A second one, beside one that waits for records, tells what has become durable;
 * as long as the primary has more, it asks for that, too.
 * While the log takes no records, because its disk fails or is behind, none is sent: what has come stays in memory,
 * which is one reply or two, and the primary goes on without this standby before long.
 *
 * An answer that does not come within SHARD_FOLLOWER_SILENCE_MS ends the connection.
 */
#ifndef SERVER_SHARD_FOLLOWER_H
#define SERVER_SHARD_FOLLOWER_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/message.h"
#include "server/shard_wal.h"

#define SHARD_FOLLOWER_SILENCE_MS 5000u
#define SHARD_FOLLOWER_WAIT_MS 250u              /* for a first record */
#define SHARD_FOLLOWER_FETCH_BYTES (1u << 20)    /* of a reply; one record may be longer */
#define SHARD_FOLLOWER_CATCH_UP_BYTES (4u << 20) /* of one that does not bring all */

struct shard_follower;

enum shard_follower_state {
    SHARD_FOLLOWER_IDLE,
    SHARD_FOLLOWER_DIALLING,
    SHARD_FOLLOWER_FETCHING,
    SHARD_FOLLOWER_FAILED
};

struct shard_follower_config {
    struct channel_loop *channels;   /* borrowed: the shard loop's */
    struct shard *shard;             /* borrowed; it is being replayed */
    struct shard_wal *wal;           /* borrowed */
    uint64_t (*now_ms)(void *owner); /* the shard's time */
    void *owner;                     /* borrowed */
    uint64_t needs;                  /* server/replication/follower.h */
    uint32_t shard_number;           /* of the cluster, for the log */
};

/* Whom to ask. */
struct shard_follower_primary {
    struct address address;
    struct hello hello; /* but for the shard */
    uint32_t shard;     /* on its node */
    uint32_t wait_ms;   /* for a first record; 0: SHARD_FOLLOWER_WAIT_MS */
    uint64_t term;
    uint64_t patience_ms; /* the primary's: so long its replies wait for a silent standby */
    void (*on_handed_over)(void *owner); /* the view says so; on the shard's thread */
    void *owner;                         /* borrowed */
};

/* Numbers of records. */
struct shard_follower_view {
    enum shard_follower_state state;
    bool is_in_sync;     /* the primary says that its replies wait for this standby */
    bool is_handed_over; /* it acknowledges nothing more, and this shard has all that it did */
    bool needs_copy;   /* FAILED: this shard's rows are not the primary's; only a copy helps */
    bool is_exact;     /* follower_is_exact() */
    bool is_drained;   /* all that was received is replayed */
    uint64_t received; /* all up to this one are in memory */
    uint64_t applied;  /* all up to this one are in the shard and in its log */
    uint64_t durable;  /* and on the disk */
    uint64_t appended; /* the primary's newest, as it said last; 0: it has said nothing yet */
    uint64_t stored;   /* and what it has on its disk */
    uint64_t
        behind_ms; /* monotonic: since when `applied` has been less than that; 0: it is not */
    uint64_t heard_ms; /* monotonic: its last reply; 0: none */
    bool
        was_silent; /* for longer than the primary waits, so that it may have gone on alone; until its next word */
    uint64_t greater_term; /* FAILED: the primary has another one */
    char why[200]; /* DIALLING, FAILED, or a log that takes nothing: the reason; else "" */
};

/* The log is open, behind the last record that the shard has. */
struct shard_follower *shard_follower_new(const struct shard_follower_config *config) ON_SHARD;

/* Its connection must be over: the loop has ended. NULL is fine. */
void shard_follower_free(struct shard_follower *f) ON_SHARD;

/* In IDLE. */
void shard_follower_start(struct shard_follower *f,
                          const struct shard_follower_primary *primary) ON_SHARD;

/* Nothing is asked for any more; what was received is still applied. NULL is fine. */
void shard_follower_stop(struct shard_follower *f) ON_SHARD;

/* In IDLE: what was received and is not applied is not to be. NULL is fine. */
void shard_follower_drop(struct shard_follower *f) ON_SHARD;

/* A few times a second, and when the log has moved. NULL is fine. */
void shard_follower_tick(struct shard_follower *f) ON_SHARD;

/* Any thread. */
void shard_follower_see(struct shard_follower *f, struct shard_follower_view *ret);

#endif
