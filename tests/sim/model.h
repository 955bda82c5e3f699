/*
 * A trivial model of one shard: the events that its write-ahead log recorded, in order, and what they make of a few
 * arrays. It knows the rules of server/core, and none of its code.
 *
 *     history   every fact, by its number; after a recovery it ends where the log ended
 *     model     facts 1 to n, applied: rows, versions, workers, what waits for its clock
 */
#ifndef TESTS_SIM_MODEL_H
#define TESTS_SIM_MODEL_H

#include "server/core/membership.h"
#include "server/core/shard_events.h"
#include "tests/sim/push_history.h"

/* One event, without anything borrowed but the push. */
struct fact {
    uint64_t id; /* of a pair's shard: the same in both members' logs (pair.h) */
    enum shard_event_type type;
    uint64_t version;
    uint32_t rank;
    uint64_t incarnation;
    const struct sent_push *push;
    int status;                 /* of a push */
    enum worker_state state;    /* of an end */
    uint64_t clock, last_acked; /* of a join, a moved clock, a combined one */
    uint64_t run;               /* of a combined clock */
    uint64_t
        begins; /* of a join: the clock from which it counts, as the others may be further than it says */
    uint32_t table; /* made; of rows */
    enum shard_rows_op op;
    uint64_t keys;  /* a bit for each */
    uint64_t at_us; /* when */
    uint64_t here_us,
        at_held_us; /* when this log got it; what its thread had spent on files by then, and frozen */
    bool is_dropped; /* by a log that was full: only a checkpoint has it */
};

struct history {
    struct fact *facts; /* owned: number n stands at n - 1 */
    uint64_t n, cap;
};

struct model_worker {
    enum worker_state state;
    uint64_t incarnation, clock, last_seq;
    uint64_t
        joined_clock; /* at which it stood when it came: of older ones nothing is waited for */
};

struct model_row {
    bool is_there;
    uint64_t version, made; /* made: the version that made it */
};

struct model_held {
    const struct sent_push *push;
    uint64_t run; /* of the job, when it came */
    bool is_finished;
};

/* Whose pushes a clock was combined from. */
struct model_combined {
    uint64_t run;                              /* 0: it is not, yet */
    uint64_t incarnations[PLAN_N_WORKERS_MAX]; /* 0: without this rank */
};

#define MODEL_HELD_MAX 512u

struct model {
    const struct plan *plan; /* borrowed */
    uint32_t n_tables;
    uint64_t version, n_pushes[PLAN_N_TABLES_MAX];
    struct model_row rows[PLAN_N_TABLES_MAX][PLAN_N_KEYS_MAX];
    float *values[PLAN_N_TABLES_MAX]; /* owned: n_keys x width */
    uint64_t run;                     /* how often the job has started; 0: there is none */
    struct model_worker workers[PLAN_N_WORKERS_MAX];
    struct model_held
        held[MODEL_HELD_MAX]; /* in the order of run, clock, rank, incarnation, number */
    uint32_t n_held;
    struct model_combined combined[PLAN_N_STEPS_MAX];          /* by clock */
    uint64_t gone[PLAN_N_TABLES_MAX], left[PLAN_N_TABLES_MAX]; /* told for the next version */
    uint64_t n_applied;                                        /* pushes */
};

void history_deinit(struct history *h);
void history_add(struct history *h, const struct fact *fact);

/* The fact that an event is; push NULL where it is none of the push history's. */
struct fact fact_of(const struct shard_event *event, const struct push_history *push_history,
                    uint32_t shard);

void model_init(struct model *m, const struct plan *plan);
void model_deinit(struct model *m);

/* Another one, of the same rows and versions and with no job. `ret`: new. */
void model_copy(const struct model *m, struct model *ret);

/* A restore into another layout combines each clock that was complete when the log ended, before it reads the rows. */
void model_release(struct model *m);

/* Takes the rows of `from` whose keys are those of shard `shard`, as they are resharded to another layout, and the greatest
 * counts. */
void model_reshard(struct model *m, const struct model *from, uint32_t shard);

/* The first n weights of a row as a pull has them now; zeros if there is none. */
void model_show(const struct model *m, uint32_t table, uint32_t key, uint32_t n, float *ret);

/* Are these the bytes of a row that is there? With its state it is as it is kept, else as a pull has it. */
bool model_is_row(const struct model *m, uint32_t table, uint32_t key, const uint8_t *bytes,
                  bool state);

/* NULL, or the rule that was broken. */
const char *model_apply(struct model *m, const struct fact *fact);

static inline bool model_counts(const struct model_worker *w)
{
    return w->state == WORKER_EXPECTED || w->state == WORKER_LIVE;
}

uint64_t model_min_clock(const struct model *m);

#endif
