/*
 * The state that the trainer's threads share with the network thread (below: the thread that runs the loop just now,
 * network_thread.h): a monitor of one lock, with one condition for each pull and one for everything else. The network
 * thread reports events; the trainer's threads (some that pull, one that pushes: ps.h) wait here and nowhere else.
 * Nobody is woken but those who wait for just that.
 *
 * A thread that waits need not sleep until another one has read its answer: the first one drives the network itself,
 * between two looks at what it waits for (struct client_state_network). The others sleep. The driver wakes one of them
 * when it is done, to drive in its place.
 *
 * A thread drives in the first 10 ms of its wait only. After that it sleeps, and is woken once: when what it waits for
 * is there. For while a thread works, signals to the process reach other threads (signals.h); one that waits for long
 * is asleep, and a signal ends its wait at once, however busy the network is with the answers of others.
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

#include "proto/message.h"
#include "worker/client/signals.h"
#include "worker/client/traffic.h"
#include "worker/client/wakeup.h"

#define CLIENT_STATE_NO_DEADLINE UINT64_MAX

struct ps_pull;

enum client_state_phase {
    CLIENT_STATE_OPENING,
    CLIENT_STATE_JOINED,
    CLIENT_STATE_REJOINING,
    CLIENT_STATE_REJOINED
};

/* The shards' answers to the current table request. */
struct client_state_table {
    uint32_t n_waiting; /* shards that have not answered */
    int status;         /* the first refusal */
    char text[MESSAGE_TEXT_MAX];
    struct table_spec spec;
    uint32_t missing; /* MESSAGE_FEATURE_* that some shard has not */
};

/* For a library whose caller is not ours. All zeros: for a program of ours. */
struct client_state_hooks {
    bool is_interruptible; /* waits end with -EINTR behind a signal */
    /* Called by any thread, under the lock, when the first pull has come: client_state_next_came() has it. NULL: pulls
     * are only waited for. */
    void (*on_came)(void *arg);
    void *arg; /* borrowed */
};

/* The network, driven by a thread that waits. Each function is called without the lock, but for leave() and wake(). */
struct client_state_network {
    /* No other thread runs the network from here on, until leave(). False: it is not to be driven now. */
    bool (*enter)(void *arg);
    /* Sleeps until there is something to do, or for timeout_ns, and does it. 0; -EINTR behind a signal; -EAGAIN: it is
     * not to be driven any more. */
    int (*turn)(void *arg, const struct signals *signals, uint64_t timeout_ns);
    /* is_for_long: nobody is to drive in its place soon. */
    void (*leave)(void *arg, const struct signals *signals, bool is_for_long);
    /* Ends the sleep of a turn() under way. Any thread. */
    void (*wake)(void *arg);
    void *arg; /* borrowed */
};

struct waiter;

struct client_state {
    struct traffic traffic;
    struct client_state_hooks hooks;
    struct client_state_network network; /* NULLs: threads that wait sleep */
    uv_mutex_t lock;
    struct wakeup changed; /* all but pulls; of threads whose waits are not interruptible */

    /* Everything below is under the lock. */
    struct wakeup_fds fds; /* that threads of interruptible waits sleep at */
    bool has_driver,
        may_drive; /* may_drive: the network could be driven, when that was last tried */
    struct waiter *asleep; /* borrowed: threads that wait and do not drive; the newest first */
    enum client_state_phase phase;
    uint64_t epoch; /* counts incarnations: requests of an older epoch are dropped */
    uint64_t incarnation, map_id;
    uint64_t clock;
    uint64_t
        job_clock; /* of a job with backup workers: where it has been; it waits for no step before */
    struct err failure; /* status 0: none */
    struct err refusal; /* the first refusal of a push since the last one was reported */
    uint64_t n_refusals;
    uint64_t unacked_bytes, n_unacked;
    uint32_t n_shards;
    uint64_t *acked; /* owned, n_shards: number of each shard's last acknowledged push */
    uint64_t last_pull_id;
    struct ps_pull *under_way, *idle; /* owned; the newest first */
    struct ps_pull *first_came,
        **last_came; /* of those under way: have ended, and nobody waits */
    uint32_t n_came;
    struct client_state_table table;
    bool is_leaving; /* a pull that starts now ends at once: its shards are gone */
    uint32_t n_leaving;
};

/* hooks: copied; NULL: none. */
int client_state_init(struct client_state *s, const struct client_state_hooks *hooks)
    MUST_CHECK;
void client_state_deinit(struct client_state *s);

/* Before any thread waits. */
void client_state_set_network(struct client_state *s,
                              const struct client_state_network *network);

/* ---- the trainer's threads ----
 *
 * Deadlines are in uv_hrtime(). -ETIMEDOUT, and -EINTR (client_state_hooks), come without a sentence: the caller writes
 * it. No failure has this status. */

int client_state_wait_open(struct client_state *s, uint64_t deadline_ns, struct err *err)
    MUST_CHECK;

/* Waits until at most max_bytes are unacknowledged; 0: until every push is acknowledged. Returns a
 * failure (final), PS_EFENCED (the worker has joined again; until client_state_resume()), or the
 * refusal of a push (once). Links give up by themselves: a deadline is for those who want less. */
int client_state_wait_window(struct client_state *s, uint64_t max_bytes, uint64_t deadline_ns,
                             struct err *err) MUST_CHECK;

/* The incarnation and the cluster that a push is for. */
struct client_state_identity {
    uint64_t epoch, incarnation, map_id;
    uint64_t acked; /* every shard has acknowledged its pushes up to this one */
};

/* Adds n_pushes to the unacknowledged ones. Their epoch is UINT64_MAX if they will be dropped. */
void client_state_add_pushes(struct client_state *s, uint64_t n_pushes, uint64_t n_bytes,
                             struct client_state_identity *ret);

/* REJOINED -> JOINED. Returns the clock at which the worker continues. */
uint64_t client_state_resume(struct client_state *s);

/* ---- pulls: the states are drawn in pull.h ---- */

/* A FILLED one, the caller's. Returns what client_state_wait_window(UINT64_MAX) does, or -ENOMEM. */
int client_state_acquire_pull(struct client_state *s, uint64_t deadline_ns,
                              struct ps_pull **ret, struct err *err) MUST_CHECK;

/* Under way: with an id and an epoch (UINT64_MAX if its requests will be dropped). *ret_clock: as
 * client_state_clock(), or the pull's clock if a job with backup workers has been there: this worker's steps before it
 * are over, pushed or not. Returns how many pulls client_state_next_came() has. */
uint32_t client_state_start_pull(struct client_state *s, struct ps_pull *pull,
                                 uint64_t *ret_clock);

/* This thread waits for it from now on. -EINVAL: it is not under way, or not this client's, or another thread does. */
int client_state_begin_wait(struct client_state *s, struct ps_pull *pull, uint64_t now_ns,
                            struct err *err) MUST_CHECK;

/* Waits for the shard's answer, or for any shard's refusal: *ret_refused is the first shard that has refused, n_shards
 * if there is none. -ETIMEDOUT at the pull's deadline; before, at until_ns, -EAGAIN. With a sentence: -ECANCELED after
 * client_state_cancel_pull(), PS_EFENCED if the worker has joined again since the pull was started. */
int client_state_wait_answer(struct client_state *s, struct ps_pull *pull, uint32_t shard,
                             uint64_t until_ns, uint32_t *ret_refused, struct err *err)
    MUST_CHECK;

/* The thread no longer waits for it; it is under way as before. */
void client_state_pause_wait(struct client_state *s, struct ps_pull *pull);

/* A pull with a tag that has ended and that nobody waits for, the first that came, and its tag; NULL: there is none.
 * Each comes once, and again after client_state_pause_wait(). *ret_more: there is another one. */
struct ps_pull *client_state_next_came(struct client_state *s, void **ret_tag, bool *ret_more);
bool client_state_has_come(struct client_state *s);

/* Takes a pull back that is FILLED or waited for. Later answers to it are dropped. */
void client_state_end_pull(struct client_state *s, struct ps_pull *pull);

/* Ends the wait for a pull that is under way, now or when it begins; nothing happens to another, nor, unless tag is
 * NULL, to one with another tag. Any thread. */
void client_state_cancel_pull(struct client_state *s, struct ps_pull *pull, const void *tag);
void client_state_cancel_pulls(struct client_state *s);

/* The first shard without an answer; n_shards if there is none. */
uint32_t client_state_first_silent(struct client_state *s, const struct ps_pull *pull);

/* Since when the pull that has been waited for the longest is, in uv_hrtime(); 0: none is. Any thread. */
uint64_t client_state_waited_since(struct client_state *s);

/* ---- tables, farewells ---- */

/* The failure: none is to be asked for any more. */
int client_state_start_table(struct client_state *s, struct err *err) MUST_CHECK;
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

/* The cluster is found. `incarnation`: of the worker that will join. -ENOMEM. */
int client_state_set_shards(struct client_state *s, uint32_t n_shards, uint64_t map_id,
                            uint64_t incarnation) MUST_CHECK;
void client_state_joined(struct client_state *s, uint64_t clock);
/* Of a job with backup workers: its slowest shard has been at this clock, whatever it goes back to. */
void client_state_job_is_at(struct client_state *s, uint64_t clock);
/* Drops all unacknowledged pushes; returns the new epoch. */
uint64_t client_state_rejoin(struct client_state *s, uint64_t incarnation);
/* Any thread. */
void client_state_fail(struct client_state *s, int status, const char *sentence);
void client_state_refuse(struct client_state *s, int status, const char *sentence);
void client_state_ack(struct client_state *s, uint32_t shard, uint64_t seq, uint64_t n_bytes);
/* The shard's answer is filled, if the pull still has this id. */
void client_state_answered(struct client_state *s, struct ps_pull *pull, uint64_t id,
                           uint32_t shard);
void client_state_table_answered(struct client_state *s, const struct table_reply *reply);
void client_state_left(struct client_state *s);

#endif
