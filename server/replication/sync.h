/*
 * Is the standby in sync? The state of a primary, and the order of its steps: a standby that is in sync has all that
 * was acknowledged, and TERMS says so only while that is true.
 *
 *     state     replies wait   TERMS says   goes on when
 *     OUT       no             no           the standby has caught up on all shards -> JOINING
 *     JOINING   yes            no           it has all that there was when the last gate closed -> ENTERING
 *                                           it is lost, or slow -> OUT
 *     ENTERING  yes            no or yes    yes is on the disk -> IN; that failed, or it is lost -> LEAVING
 *     IN        yes            yes          it is lost -> LEAVING
 *     LEAVING   yes            yes or no    no is on the disk -> OUT; that failed -> again, after a while
 *
 * Lost: a connection of it ended, or none of its fetches came for the patience. So replies never go out without the
 * standby while the disk says that it has them.
 *
 * A value: the caller closes and opens the gates (gate.h) and writes TERMS, as sync_step() says.
 */
#ifndef SERVER_REPLICATION_SYNC_H
#define SERVER_REPLICATION_SYNC_H

#include <stdbool.h>

#include "common/base.h"

enum sync_state { SYNC_OUT, SYNC_JOINING, SYNC_ENTERING, SYNC_IN, SYNC_LEAVING };

/* What is to be done; all but NOTHING once. */
enum sync_order {
    SYNC_NOTHING,
    SYNC_CLOSE_GATES,
    SYNC_OPEN_GATES,
    SYNC_WRITE_YES, /* TERMS.in_sync; then sync_note_write() */
    SYNC_WRITE_NO
};

/* Of each shard, as it last said. */
struct sync_shard {
    bool is_connected;
    bool is_closed; /* its gate waits */
    uint64_t held; /* what the standby has, as --standby-ack counts: gate_held() */
    uint64_t closed_at;
    uint64_t heard_ms, caught_up_ms; /* 0: never */
};

#define SYNC_RETRY_MS 1000u    /* after a write that failed */
#define SYNC_CAUGHT_UP_MS 500u /* so new that it is worth waiting for */

struct sync {
    enum sync_state state;
    bool writes;       /* sync_note_write() is still to come */
    bool ends;         /* the standby is to go, in sync or not */
    uint64_t since_ms; /* of the state */
    uint64_t retry_ms; /* not before */
    uint64_t patience_ms;
};

/* in_sync: TERMS says yes, of a run before. */
void sync_init(struct sync *s, uint64_t patience_ms, bool in_sync, uint64_t now_ms);

/* A few times a second. is_followed: a standby has a connection, and waits for records. */
enum sync_order sync_step(struct sync *s, const struct sync_shard *shards, uint32_t n,
                          bool is_followed, uint64_t now_ms);

/* A connection of it ended, or it has been silent for half of the patience. */
bool sync_seems_lost(const struct sync *s, const struct sync_shard *shards, uint32_t n,
                     uint64_t now_ms);

/* The write that was ordered has ended; status 0: it is on the disk. */
void sync_note_write(struct sync *s, int status, uint64_t now_ms);

/* "out of sync", "joining", "in sync", "leaving" */
const char *sync_state_name(enum sync_state state);

#endif
