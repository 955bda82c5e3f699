/*
 * A node's checkpoints in a simulated process: server/keeper.c and server/shard_save.c played event by event, in
 * between whatever else happens.
 *
 *     IDLE -> NUMBERED -> each part: BEGIN, FILL, CLOSE, SYNC, DONE -> committed -> IDLE
 *
 * A failure anywhere drops it.
 */
#ifndef TESTS_SIM_KEEPER_H
#define TESTS_SIM_KEEPER_H

#include "server/durable/saver.h"
#include "tests/sim/server.h"

enum keeper_part_state { PART_BEGIN, PART_FILL, PART_CLOSE, PART_SYNC, PART_DONE };

struct keeper_part {
    enum keeper_part_state state;
    struct saver *saver; /* owned */
    bool is_closed;
    uint64_t first, through;
    struct part_facts facts;
};

/* A checkpoint that was taken, or may have been: its commit failed, or the process died in it. */
struct keeper_save {
    bool is_sure;
    uint64_t through[PLAN_N_SHARDS_MAX];
};

struct keeper {
    struct world *world;    /* borrowed, as all here */
    struct server *servers; /* the node's */
    uint32_t node;
    struct disk *disk;
    const char *data_dir;
    uint64_t life; /* 0: no process is there */
    bool is_under_way;
    uint64_t base;             /* the last that is whole; 0: none */
    uint32_t n_deltas;         /* since the last full one */
    struct manifest *manifest; /* owned */
    struct keeper_part parts[PLAN_N_SHARDS_MAX];
    uint64_t n_done; /* in all lives */
    struct keeper_save
        saves[PLAN_N_KEPT_MAX]; /* the newest; number n stands at n % PLAN_N_KEPT_MAX */
    uint64_t n_saves;
};

void keeper_init(struct keeper *k);
void keeper_deinit(struct keeper *k);

/* The oldest one that has to be there still; NULL: none was ever taken, or nobody can say. *ret_is_cut: the log
 * may be, so that nothing older leads anywhere. */
const struct keeper_save *keeper_oldest(const struct keeper *k, bool *ret_is_cut);

/* base, n_deltas: of what the shards were loaded from. */
void keeper_start(struct keeper *k, uint64_t life, uint64_t base, uint32_t n_deltas);
/* The process is gone. Before the servers. */
void keeper_stop(struct keeper *k);

#endif
