/*
 * The promises, held against a shard, or against what a disk would give back at this moment.
 */
#ifndef TESTS_SIM_CHECK_H
#define TESTS_SIM_CHECK_H

#include "server/durable/rebuild.h"
#include "tests/sim/disk.h"
#include "tests/sim/world.h"

#define CHECK_DATA_DIR "data"

/* Where one of a node's shards stands. */
struct check_place {
    uint32_t node, local, shard; /* shard: of the cluster */
};

/* The shard is the twin, bit for bit: rows, versions, counts, who takes part. */
void check_same(const struct world *w, const struct check_place *at, struct shard *core,
                struct model *model, const char *when) ON_SHARD;

/* A new shard, as the disk gives it back. Not 0: *ret is NULL. */
int check_rebuild(const struct world *w, const struct check_place *at, const struct disk *disk,
                  const struct rebuild_at *to, struct shard **ret,
                  struct rebuild_facts *ret_facts, struct err *err) ON_SHARD MUST_CHECK;

/* What a process that dies now, or a machine without power, would have to give back: all records up to
 * here. `is_cut`: of power. */
uint64_t check_floor(const struct world *w, uint32_t shard, bool is_cut);

/* A recovery that ended behind record `last` gave back what was promised. */
void check_promise(const struct world *w, const struct check_place *at, uint64_t last,
                   bool is_cut);

/* If the node's process died now: a copy of its disk gives back what was promised, and that is the twin. */
void check_crash_now(struct world *w, const struct check_place *at, const struct disk *disk,
                     bool is_cut) ON_SHARD;

/* Lock step: the state at clock c of a job that nothing happened to, on this shard. */
void check_cut(const struct world *w, const struct check_place *at, const struct disk *disk,
               uint64_t clock) ON_SHARD;

/* All is done: every acknowledged push is in it, and with lock step it is what it always is. */
void check_end(const struct world *w, const struct check_place *at, struct shard *core)
    ON_SHARD;

#endif
