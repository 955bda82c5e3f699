/*
 * Where the trainer's threads and the network thread meet: a lock, a condition, and the few
 * facts that all must see. The network thread reports; the trainer's threads (one that pulls,
 * one that pushes: ps.h) wait here, and nowhere else, always with a deadline.
 *
 *     standing     pushes and pulls      leaves it by
 *     OPENING      not yet               desk_joined() -> JOINED
 *     JOINED       go out                desk_rejoin() -> REJOINING
 *     REJOINING    wait                  desk_joined() -> UNTOLD
 *     UNTOLD       are answered with     desk_resume() -> JOINED
 *                  PS_EFENCED
 *
 * A failure is final: it stays, and every wait ends with it.
 */
#ifndef WORKER_CLIENT_DESK_H
#define WORKER_CLIENT_DESK_H

#include <stdbool.h>
#include <uv.h>

#include "common/buf.h"
#include "proto/message.h"

#define DESK_NO_DEADLINE UINT64_MAX

enum desk_standing { DESK_OPENING, DESK_JOINED, DESK_REJOINING, DESK_UNTOLD };

/* One shard's answer to the pull under way. `reply` and `body` are the network thread's until
 * `here`, then the trainer's until it asks the next pull. */
struct desk_answer {
    bool here;
    struct pull_reply reply; /* its values point into body */
    struct buf body;
};

/* What all shards said of the table under way. */
struct desk_table {
    uint32_t n_waiting; /* shards that have not said */
    int status;         /* the first refusal */
    char text[MESSAGE_TEXT_MAX];
    struct table_spec spec;
};

struct desk {
    uv_mutex_t lock;
    uv_cond_t changed;

    /* Everything below is under the lock. */
    enum desk_standing standing;
    uint64_t epoch; /* counts incarnations: what was posted for an older one is dropped */
    uint64_t incarnation, map_id;
    uint64_t clock;
    struct err failure; /* status 0: none */
    struct err refusal; /* of a push, not yet told; the first of them */
    uint64_t n_refusals;
    uint64_t unacked_bytes, n_unacked;
    uint32_t n_shards;
    struct desk_answer *answers; /* owned, n_shards */
    uint64_t *acked; /* owned, n_shards: number of the last push that each has judged */
    uint64_t pull_id;
    bool pull_refused; /* one of the answers says no */
    bool pull_cancelled;
    struct desk_table table;
    uint32_t n_leaving;
};

int desk_init(struct desk *d) MUST_CHECK;
void desk_deinit(struct desk *d);

/* ---- the trainer's threads. Deadlines are of uv_hrtime(). -ETIMEDOUT, which no failure has as
 * its status, leaves the sentence to the caller. ---- */

int desk_wait_open(struct desk *d, uint64_t deadline_ns, struct err *err) MUST_CHECK;

/* Waits until at most max_bytes are unacknowledged. Returns what the trainer has to be told
 * before it goes on: a failure (for good), PS_EFENCED (after the worker has joined again, until
 * desk_resume()), the refusal of a push (once); else 0. No deadline: links give up by themselves. */
int desk_wait_room(struct desk *d, uint64_t max_bytes, struct err *err) MUST_CHECK;

/* What a push is numbered by: the incarnation that it is for, and the cluster. */
struct desk_identity {
    uint64_t epoch, incarnation, map_id;
    uint64_t acked; /* all shards have judged its pushes up to this one */
};

/* n_pushes more wait for their acknowledgement. The epoch that they belong to is UINT64_MAX when
 * nobody will take them. */
void desk_add_pushes(struct desk *d, uint64_t n_pushes, uint64_t n_bytes,
                     struct desk_identity *ret);

/* A pull begins: its number and epoch. */
void desk_start_pull(struct desk *d, uint64_t *ret_id, uint64_t *ret_epoch);

/* The trainer knows that the worker has joined again; the clock at which it is to go on. */
uint64_t desk_resume(struct desk *d);

/* Waits for the shard's answer, or for any shard's refusal. -ECANCELED with a sentence after
 * desk_cancel_pull(). */
int desk_wait_answer(struct desk *d, uint32_t shard, uint64_t deadline_ns, struct err *err)
    MUST_CHECK;

/* Answers to the pull under way come to nothing from here on. */
void desk_end_pull(struct desk *d);

/* Ends the wait for the pull under way, if there is one. (Any thread.) */
void desk_cancel_pull(struct desk *d);

/* The first shard that has not answered, or n_shards; the first that has refused, or n_shards.
 */
uint32_t desk_first_silent(struct desk *d);
uint32_t desk_first_refusal(struct desk *d);

void desk_start_table(struct desk *d);
int desk_wait_table(struct desk *d, uint64_t deadline_ns, struct desk_table *ret,
                    struct err *err) MUST_CHECK;

void desk_start_leave(struct desk *d);
int desk_wait_left(struct desk *d, uint64_t deadline_ns, struct err *err) MUST_CHECK;

/* The clock at which the worker is to go on; grows with each rejoin. */
uint64_t desk_clock(const struct desk *d);

/* Has a failure been reported? (Any thread.) */
bool desk_is_failed(struct desk *d);

/* ---- the network thread ---- */

/* The cluster is known, and as whom the worker is going to join. */
void desk_set_shards(struct desk *d, uint32_t n_shards, uint64_t map_id, uint64_t incarnation);
void desk_joined(struct desk *d, uint64_t clock);
/* Drops what is unacknowledged; returns the new epoch. */
uint64_t desk_rejoin(struct desk *d, uint64_t incarnation);
/* Any thread. */
void desk_fail(struct desk *d, int status, const char *sentence);
void desk_refuse(struct desk *d, int status, const char *sentence);
void desk_ack(struct desk *d, uint32_t shard, uint64_t seq, uint64_t n_bytes);
/* Is `id` the pull under way? Then the shard's answer may be filled, and desk_answered()
 * called. */
bool desk_wants(struct desk *d, uint64_t id);
void desk_answered(struct desk *d, uint64_t id, uint32_t shard);
void desk_table_told(struct desk *d, const struct table_reply *reply);
void desk_left(struct desk *d);

#endif
