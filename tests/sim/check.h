/*
 * The promises, held against a shard, or against what a disk would give back at this moment.
 */
#ifndef TESTS_SIM_CHECK_H
#define TESTS_SIM_CHECK_H

#include "server/recovery/recover_shard.h"
#include "tests/sim/disk.h"
#include "tests/sim/world.h"

/* Where one of a node's shards stands. */
struct check_place {
    uint32_t node, local, shard; /* shard: of the cluster */
    uint32_t member;             /* of its pair */
};

static inline struct check_place check_place_of(const struct world *w,
                                                const struct shard_record *rec)
{
    uint32_t n = w->plan.shards_per_node;

    return (struct check_place){ rec->shard / n, rec->shard % n, rec->shard, rec->member };
}

static inline const struct shard_record *check_record(const struct world *w,
                                                      const struct check_place *at)
{
    return &w->members[at->member][at->shard];
}

/* The shard is the reference, bit for bit: rows, versions, counts, who takes part. */
void check_same(const struct world *w, const struct check_place *at, struct shard *core,
                struct model *model, const char *when) ON_SHARD;

/* The reference behind that record. `ret`: model_deinit() it. */
void check_fold(const struct world *w, const struct shard_record *rec, uint64_t last,
                struct model *ret);

/* A new shard, as the disk gives it back. Not 0: *ret is NULL. */
int check_rebuild(const struct world *w, const struct check_place *at, const struct disk *disk,
                  const struct recover_shard_at *to, struct shard **ret,
                  struct recover_shard_facts *ret_facts, struct err *err) ON_SHARD MUST_CHECK;

/* What a process that dies now, or a machine without power, would have to give back: all records up to
 * here. `is_cut`: of power. */
uint64_t check_floor(const struct world *w, const struct shard_record *rec, bool loses_power);

/* A recovery that ended behind record `last` gave back what was promised. */
void check_promise(const struct world *w, const struct shard_record *rec, uint64_t last,
                   uint64_t keep, bool loses_power);

/* If the node's process died now: a copy of its disk gives back what was promised, and that is the reference. */
void check_crash_now(struct world *w, const struct check_place *at, const struct disk *disk,
                     bool loses_power) ON_SHARD;

/* async, of a shard that lives: what was recorded an interval ago is on the disk. At every moment. */
void check_interval(struct world *w, struct shard_record *rec);

/* A job in lock step that nothing happens to, step by step. */
struct calm {
    const struct plan *plan; /* borrowed */
    uint64_t n_steps;
    uint64_t is_there[PLAN_N_TABLES_MAX]; /* a bit for each key */
    /* Of wide rows the first weights. */
    float rows[PLAN_N_TABLES_MAX][PLAN_N_KEYS_MAX][PLAN_WIDTH_MAX];
};

void calm_init(struct calm *c, const struct plan *plan);
void calm_step(struct calm *c);

/* Lock step, as long as nobody ends: steps that are combined in the shard's history up to that record. */
uint64_t check_n_steps(const struct world *w, uint32_t shard, uint64_t record);

/* Lock step: the disk gives back the state that this job has. is_kept: it has to; else it may not have it any more. */
void check_clock(const struct world *w, const struct check_place *at, const struct disk *disk,
                 const struct calm *calm, bool is_kept) ON_SHARD;

/* The smallest clock of those that count, behind that record. */
uint64_t check_min_clock(const struct world *w, uint32_t shard, uint64_t record);

/* Bounded staleness, of a job that never started afresh: the disk gives back the state at the sync point, with
 * all pushes of the steps before it and none of later ones. False: it does not have it any more (is_kept: it has to). */
bool check_sync_point(const struct world *w, const struct check_place *at,
                      const struct disk *disk, uint64_t sync_point, bool is_kept) ON_SHARD;

/* All is done: every acknowledged push is in it, and with lock step it is what it always is. */
void check_end(const struct world *w, const struct check_place *at, struct shard *core,
               const struct calm *calm) ON_SHARD;

#endif
