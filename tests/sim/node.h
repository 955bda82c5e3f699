/*
 * One psd: a disk, its shards, its checkpoints. It starts, dies of what the schedule wants, or of a disk in the middle of an
 * operation, and starts again, from what the disk gives back.
 */
#ifndef TESTS_SIM_NODE_H
#define TESTS_SIM_NODE_H

#include "tests/sim/disk.h"
#include "tests/sim/keeper.h"
#include "tests/sim/server.h"

struct node {
    struct world *world; /* borrowed */
    uint32_t index;
    struct disk disk;
    struct server servers[PLAN_N_SHARDS_MAX];
    struct keeper keeper;
    uint64_t life, n_lives;      /* life 0: down */
    bool was_cut;                /* its last death was a power cut */
    bool is_due;                 /* a start is under way */
    uint64_t n_recovered, n_met; /* n_met: meetings that the disk gave back at the end */
};

void node_init(struct node *n, struct world *world, uint32_t index);
void node_deinit(struct node *n);

/* Starts after a while, and again and again until it succeeds. */
void node_start(struct node *n);

/* Dies at once, and starts again later. */
void node_kill(struct node *n, bool is_power_cut);

/* Has all that was told reached the disk, and all that waited for its clock the rows? */
bool node_is_safe(const struct node *n);

/* After every event: what has happened to a shard has happened to its twin, and what is due is on the disk. */
void node_check_step(struct node *n);

/* If it died now; at the end of the schedule. */
void node_check_crash(struct node *n, bool is_cut);
void node_check_end(struct node *n);

#endif
