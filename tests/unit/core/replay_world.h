/* A shard to which all sorts of things happen, a event log of it, and scans of it now and then. */
#ifndef TESTS_UNIT_CORE_REPLAY_WORLD_H
#define TESTS_UNIT_CORE_REPLAY_WORLD_H

#include <errno.h>
#include <math.h>

#include "events_fixture.h"
#include "server/core/push.h"

enum { N_TABLES = 8, N_JOBS = 3, N_WORKERS = 3, KEYS_MAX = 3000, DIM_MAX = 64 };

/* How often a run does what: to exercise small and large worlds. */
struct shape {
    uint32_t n_keys, n_large, n_steps;
    bool limits;  /* budgets, admission, sweeps */
    bool backups; /* of lock step: one worker, in every other round */
    uint64_t memory_max_bytes;
};

struct world {
    struct dice dice;
    const struct shape *shape;
    struct shard_config config;
    struct shard *s;
    struct event_log *event_log;
    uint64_t now_ms, incarnations;
    uint32_t n_backups;
    struct push *under_way; /* the large one, or NULL */

    struct kept_scan scans[SCANS_MAX], going; /* finished: a full one and deltas */
    size_t n_scans;
    uint64_t n_checks, n_full, n_deltas, n_large, n_overtaken, n_crashes, n_half_done,
        n_clock_slices, n_clocks_half_done;
};

const char *job_name(uint32_t job);

/* --- what may happen --- */

void finish_push(struct world *w);
void join_one(struct world *w);
void leave_one(struct world *w);
void time_passes(struct world *w);
void advance_one(struct world *w);
void push_one(struct world *w);
void go_on(struct world *w);
void table_one(struct world *w);

/* --- scans --- */

void drop_scans(struct world *w);

/* --- the crash --- */

struct shard *restore(struct world *w);

/* A push that is half done is done where it is made again: so it has to be, here. */
bool check(struct world *w);

void step(struct world *w);
struct world begin_world_of(struct dice dice, const struct shape *shape, uint64_t round);
struct world begin_world(const char *test, const struct shape *shape, uint64_t round);
void end_world(struct world *w);

#endif
