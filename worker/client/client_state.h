/*
 * The state that the trainer's threads share with the network thread: a monitor, one lock and one
 * condition. The network thread reports events; the trainer's threads (one that pulls, one that
 * pushes: ps.h) wait here and nowhere else.
 *
 *     phase        pushes and pulls      leaves it by
 *     OPENING      not yet               client_state_joined() -> JOINED
 *     JOINED       are sent              client_state_rejoin() -> REJOINING
 *     REJOINING    wait                  client_state_joined() -> REJOINED
 *     REJOINED     get PS_EFENCED        client_state_resume() -> JOINED
 *
 * A failure is final: every wait ends with it.
 */
#ifndef WORKER_CLIENT_CLIENT_STATE_H
#define WORKER_CLIENT_CLIENT_STATE_H

#include <stdbool.h>
#include <uv.h>

#include "common/bytes.h"
#include "proto/message.h"

#define CLIENT_STATE_NO_DEADLINE UINT64_MAX

enum client_state_phase {
    CLIENT_STATE_OPENING,
    CLIENT_STATE_JOINED,
    CLIENT_STATE_REJOINING,
    CLIENT_STATE_REJOINED
};

/* One shard's answer to the current pull. `reply` and `body` belong to the network thread until
 * `arrived`, then to the trainer's until its next pull. */
struct client_state_answer {
    bool arrived;
    struct pull_reply reply; /* its values point into body */
    struct bytes body;
};

/* The shards' answers to the current table request. */
struct client_state_table {
    uint32_t n_waiting; /* shards that have not answered */
    int status;         /* the first refusal */
    char text[MESSAGE_TEXT_MAX];
    struct table_spec spec;
};

struct client_state {
    uv_mutex_t lock;
    uv_cond_t changed;

    /* Everything below is under the lock. */
    enum client_state_phase phase;
    uint64_t epoch; /* counts incarnations: requests of an older epoch are dropped */
    uint64_t incarnation, map_id;
    uint64_t clock;
    struct err failure; /* status 0: none */
    struct err refusal; /* the first refusal of a push since the last one was reported */
    uint64_t n_refusals;
    uint64_t unacked_bytes, n_unacked;
    uint32_t n_shards;
    struct client_state_answer *answers; /* owned, n_shards */
    uint64_t *acked; /* owned, n_shards: number of each shard's last acknowledged push */
    uint64_t pull_id;
    bool pull_refused; /* by at least one shard */
    bool pull_cancelled;
    struct client_state_table table;
    uint32_t n_leaving;
};

int client_state_init(struct client_state *s) MUST_CHECK;
void client_state_deinit(struct client_state *s);

/* ---- the trainer's threads ----
 *
 * Deadlines are in uv_hrtime(). -ETIMEDOUT comes without a sentence: the caller writes it. No
 * failure has this status. */

int client_state_wait_open(struct client_state *s, uint64_t deadline_ns, struct err *err)
    MUST_CHECK;

/* Waits until at most max_bytes are unacknowledged; 0: until every push is acknowledged. Returns a
 * failure (final), PS_EFENCED (the worker has joined again; until client_state_resume()), or the
 * refusal of a push (once). No deadline: links give up by themselves. */
int client_state_wait_window(struct client_state *s, uint64_t max_bytes, struct err *err)
    MUST_CHECK;

/* The incarnation and the cluster that a push is for. */
struct client_state_identity {
    uint64_t epoch, incarnation, map_id;
    uint64_t acked; /* every shard has acknowledged its pushes up to this one */
};

/* Adds n_pushes to the unacknowledged ones. Their epoch is UINT64_MAX if they will be dropped. */
void client_state_add_pushes(struct client_state *s, uint64_t n_pushes, uint64_t n_bytes,
                             struct client_state_identity *ret);

/* Starts a pull: its number and epoch. */
void client_state_start_pull(struct client_state *s, uint64_t *ret_id, uint64_t *ret_epoch);

/* REJOINED -> JOINED. Returns the clock at which the worker continues. */
uint64_t client_state_resume(struct client_state *s);

/* Waits for the shard's answer, or for any shard's refusal. -ECANCELED with a sentence after
 * client_state_cancel_pull(). */
int client_state_wait_answer(struct client_state *s, uint32_t shard, uint64_t deadline_ns,
                             struct err *err) MUST_CHECK;

/* Later answers to the current pull are dropped. */
void client_state_end_pull(struct client_state *s);

/* Ends the wait for the current pull, if there is one. Any thread. */
void client_state_cancel_pull(struct client_state *s);

/* The first shard without an answer, and the first that has refused; n_shards if there is none. */
uint32_t client_state_first_silent(struct client_state *s);
uint32_t client_state_first_refusal(struct client_state *s);

void client_state_start_table(struct client_state *s);
int client_state_wait_table(struct client_state *s, uint64_t deadline_ns,
                            struct client_state_table *ret, struct err *err) MUST_CHECK;

void client_state_start_leave(struct client_state *s);
int client_state_wait_left(struct client_state *s, uint64_t deadline_ns, struct err *err)
    MUST_CHECK;

/* The clock at which the worker continues; grows with each rejoin. */
uint64_t client_state_clock(const struct client_state *s);

/* Any thread. */
bool client_state_is_failed(struct client_state *s);

/* ---- the network thread ---- */

/* The cluster is found. `incarnation`: of the worker that will join. */
void client_state_set_shards(struct client_state *s, uint32_t n_shards, uint64_t map_id,
                             uint64_t incarnation);
void client_state_joined(struct client_state *s, uint64_t clock);
/* Drops all unacknowledged pushes; returns the new epoch. */
uint64_t client_state_rejoin(struct client_state *s, uint64_t incarnation);
/* Any thread. */
void client_state_fail(struct client_state *s, int status, const char *sentence);
void client_state_refuse(struct client_state *s, int status, const char *sentence);
void client_state_ack(struct client_state *s, uint32_t shard, uint64_t seq, uint64_t n_bytes);
/* True: the shard's answer may be filled, then client_state_answered() called. */
bool client_state_is_current_pull(struct client_state *s, uint64_t id);
void client_state_answered(struct client_state *s, uint64_t id, uint32_t shard);
void client_state_table_answered(struct client_state *s, const struct table_reply *reply);
void client_state_left(struct client_state *s);

#endif
