/*
 * Lock step, second half: a clock that is complete. Its held pushes become one gradient for
 * each row, applied once.
 *
 *     N = sum over ranks of n_r
 *     w_r = (float)((double)n_r / N)
 *     g[key] = sum over ranks of w_r * g_r[key]
 *
 * n_r is the n_samples of rank r in this clock (the largest, if it sent several pushes). The
 * sum runs in the order of (rank, sequence number) and begins with the first product, so that
 * one worker's gradient stays bit for bit what it was. If nobody had samples, all ranks weigh
 * the same. The order in which pushes arrived, and how keys are dealt out to shards, change
 * nothing.
 */
#ifndef SERVER_CORE_SHARD_COMBINE_H
#define SERVER_CORE_SHARD_COMBINE_H

#include "server/core/shard_state.h"

/* A push that waits for its clock: an owned copy of its sections for lock-step tables, checked
 * when it came. */
struct shard_held {
    struct shard_held *next; /* owned */
    uint32_t n_users;        /* the queue; a walk that has still to read it (shard_walk.h) */
    uint32_t rank;
    uint64_t incarnation, seq, clock;
    uint32_t n_samples;
    bool finished;    /* its worker has ticked past its clock */
    size_t n_bytes;   /* that it takes, bytes of the sections included */
    size_t cap_bytes; /* of this allocation, which may have held another one before */
    uint32_t n_sections;
    struct section sections[]; /* their bytes stand behind them */
};

/* Room to combine the clock of `first`, or less of it. -ENOMEM. */
int shard_combine_reserve(struct shard *s, const struct shard_held *first) MUST_CHECK;

/* Applies the clock of `first`, of run `run` of its job: it and those behind it with the same clock,
 * which are sorted by (rank, seq) and hold one incarnation of each rank. NULL: nobody's counts. There
 * is room for it. */
void shard_combine(struct shard *s, const struct shard_held *first, uint64_t run);

#endif
