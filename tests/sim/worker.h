/*
 * One psworker: a trainer's steps over the rules of libps (worker/client/): numbered pushes to each shard, resent after a
 * reconnect from behind what the shard has applied; pulls within the bound; a new incarnation when fenced; goodbye at the
 * end.
 *
 *     link    AWAY -> JOINING -> NAMING -> READY -> LEAVING -> OVER; whatever breaks leads to AWAY
 *     step    pull from all shards -> compute -> push to all shards, tick -> the next
 */
#ifndef TESTS_SIM_WORKER_H
#define TESTS_SIM_WORKER_H

#include "tests/sim/world.h"

#define WORKER_BACKLOG_MAX 64u

enum link_phase { LINK_AWAY, LINK_JOINING, LINK_NAMING, LINK_READY, LINK_LEAVING, LINK_OVER };

struct link {
    enum link_phase phase;
    struct net_connection *connection; /* borrowed; NULL: none */
    uint64_t dial;                     /* the next one that counts */
    uint32_t n_named;
    struct sent_push *backlog[WORKER_BACKLOG_MAX]; /* not acknowledged, oldest first */
    uint32_t n_backlog;
    uint64_t last_seq, last_acked, joined_clock;
    bool has_joined;  /* in this epoch */
    bool is_answered; /* the pull under way */
    uint64_t beat_us; /* since when a beat is not answered; 0: none is under way */
};

struct trainer {
    struct world *world; /* borrowed */
    uint32_t rank, n_processes;
    uint64_t incarnation, epoch; /* epoch: all that is under way belongs to it */
    uint64_t clock, first_clock; /* steps finished; when this incarnation began */
    struct link links[PLAN_N_SHARDS_MAX];
    uint64_t asked, pulled; /* steps below these: their pulls were asked; answered */
    bool is_pulling, is_computing, is_done;
    struct message pull;
    uint64_t n_pulls, frozen_until_us;
    struct late *late; /* owned: what came while it stood still, oldest first */
};

void trainer_init(struct trainer *t, struct world *world, uint32_t rank);
void trainer_deinit(struct trainer *t);

/* The process starts. */
void trainer_start(struct trainer *t);
/* It dies, and another one of its rank starts after a while. */
void trainer_crash(struct trainer *t);
/* It stands still: hears nothing and says nothing, and nobody knows why. */
void trainer_freeze(struct trainer *t, uint64_t for_us);

void trainer_reply(struct trainer *t, struct net_connection *c, const struct message *m);
void trainer_closed(struct trainer *t, struct net_connection *c);

#endif
