/*
 * What all parts of one schedule share: its plan, every push, what each shard's log recorded, what is known of the processes,
 * and how a broken promise is reported.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "server/core/shard.h"
#include "server/wal/wal_queue.h"
#include "server/wal/wal_writer.h"
#include "tests/sim/machine.h"
#include "tests/sim/model.h"

/* An answer to a pull, as the shard should give it: the weights of that moment. */
struct shard_answer {
    uint64_t clock, n_facts; /* n_facts: UINT64_MAX: there is none */
    bool is_mixed;           /* rows have changed while it was read */
    float rows[PLAN_N_TABLES_MAX][PLAN_N_KEYS_MAX][PLAN_DIM_MAX];
};

#define WORLD_N_ANSWERS 64u /* kept, of each worker */

/* The process that has the shard now. */
struct shard_life {
    struct process *process; /* NULL: none, or it has not come so far */
    struct fiber *fiber;     /* the shard's thread */
    struct fiber *log_fiber; /* the log's */
    uint64_t
        failed_held_us; /* what it had spent on files, and frozen, when the log last failed */
    struct shard *core;
    struct follower *follower; /* of a standby's shard; NULL: it leads */
    struct wal_queue *queue;
    struct wal_writer *writer;
};

/* What is known of a rank at a shard (agree.h). Incarnations; 0: none. */
struct record_rank {
    uint64_t refused;        /* up to it: by this process or one before */
    uint64_t refused_before; /* ... when this process began */
    uint64_t barred,
        before; /* its join is refused, before it has come; the one that was here then goes on */
    uint64_t
        suspected_once; /* the greatest that was suspected, by this shard alone or by all */
    uint64_t suspected,
        suspected_us; /* since then, as it could have been told to all; 0: it is not */
};

/* What is known of a shard of one member of its pair, or of the only node that has it, whatever process runs it. */
struct shard_record {
    uint32_t shard, member;
    struct history history;
    struct model model;
    struct model base; /* from which the history begins: resharded rows, or nothing */
    struct shard_life life;
    uint64_t
        received; /* a standby's: all up to here was in its memory once, since its pair's last start */
    uint64_t heard_us;  /* ... when it last heard its primary ... */
    bool heard_in_sync; /* ... which then said that it is in sync */
    uint64_t promised;  /* the greatest record that a reply which was sent relied on */
    uint64_t safe;      /* ... that is on the disk, as the log says; ... */
    uint64_t written;   /* ... or in its files */
    uint64_t saved;     /* all up to here is in a checkpoint that is whole */
    uint64_t due;       /* async: ... that have to be on the disk by now */
    uint64_t failed_us; /* when its log last failed */
    uint64_t n_seen;    /* records after which the living shard was held to the reference */
    uint64_t
        lost; /* the first record of a gap that no checkpoint has mended; 0: there is none */
    uint64_t gap_first,
        gap_last; /* records that only a checkpoint has, of all such gaps; 0: there was none */
    struct shard_answer *
        answers; /* owned: for each rank the newest; its number n stands at n % WORLD_N_ANSWERS */
    uint64_t n_answers[PLAN_N_WORKERS_MAX];
    struct record_rank ranks[PLAN_N_WORKERS_MAX];
    uint64_t n_starts;
    bool is_joining; /* the shard looks at a join */
    bool has_copied; /* a copy of the other member's data is whole, and not loaded */
};

struct node;
struct client;

struct world {
    struct plan plan;
    struct push_history push_history;
    struct dice dice;
    struct shard_record members[2][PLAN_N_SHARDS_MAX];
    struct shard_record
        *records[PLAN_N_SHARDS_MAX]; /* of the member that serves, or served last */
    struct pair_line *lines; /* owned, of each shard (pair.h); NULL: no node has a standby */
    struct node *nodes;      /* borrowed, as these */
    struct node *seconds;    /* the other members of pairs, by the index of their node */
    struct node *old_nodes;  /* of the layout before, whose disks are there still */
    uint32_t n_old_nodes;
    uint64_t n_promotions;
    /* What is to go wrong when a reply is next promised by the primary of a pair (pair.h); NULL: nothing. */
    void (*on_promise)(void *owner, uint64_t number, void *data);
    void *on_promise_owner;
    const struct node *promising; /* borrowed */
    struct client *clients;
    int die_loses_power; /* who dies in an operation of its disk loses its power, too: 1, 0; -1: by dice */
    bool is_calm;   /* nothing goes wrong any more */
    bool is_traced; /* every step is shown */
    char what[80];  /* the kind of schedule, for who reads of a failure */
};

/* The schedule has broken a promise: says so and how to see it again; the program ends. */
_Noreturn void world_fail(const struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

void world_trace(const struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

static inline uint64_t world_now_us(const struct world *w)
{
    (void)w;
    return machine_now_us();
}

static inline uint64_t world_ms(const struct world *w)
{
    (void)w;
    return machine_ms();
}

#endif
