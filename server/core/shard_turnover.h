/*
 * What a shard remembers in order to decide which rows of a table come and go. Values only:
 * shard_grow.c decides about rows that come, and who makes room for them; shard_sweep.c about
 * rows that go by themselves.
 */
#ifndef SERVER_CORE_SHARD_TURNOVER_H
#define SERVER_CORE_SHARD_TURNOVER_H

#include "server/core/horizon.h"
#include "server/core/sketch.h"

#define SHARD_TURNOVER_RUNS 16u

/* A run of a job and the greatest clock that it has pushed. */
struct shard_turnover_run {
    uint64_t run, clock; /* run 0: none */
};

struct shard_turnover {
    /* The table's clock: how many clocks its pushes have gone forward since this shard began,
     * those of several jobs added up. So a job that begins at 0 again moves it on. */
    uint64_t clock;
    struct shard_turnover_run runs[SHARD_TURNOVER_RUNS];

    struct sketch *sketch; /* owned; NULL until the first push of an absent key */
    uint64_t half;         /* number of the half-window that it is in */

    struct horizon idle, ttl; /* of clocks, of milliseconds */

    /* The hand that looks for victims: the next row number; at or below what they go; how many
     * numbers are left of its round with that threshold; how often one was chosen. */
    uint64_t hand, threshold, hand_left, n_thresholds;
    uint64_t barren; /* the push (s->mark) for which nobody was found who may go */
    /* Touches are halved, once for every so many pushes of each row: when the table's
     * rows_pushed was so much that began last; numbers that the hand has still to do. */
    uint64_t aged_at, age_left;

    /* The sweep's pass. */
    uint64_t at;        /* the next row number */
    uint64_t beyond;    /* what the horizons said when it began */
    uint64_t rare_from; /* clock at which the next pass of the rare rule may begin */
    bool sweeps, rare;  /* a pass is under way; it is one of the rare rule */
};

#endif
