/*
 * Two states of one model, table by table and key by key: which rows only one of them has, which have
 * changed, and how far their weights have gone.
 *
 *     drift of a row   the L2 norm of (weights in b - weights in a), of rows that both have and that have
 *                      changed; mean, p99 and max are over these
 *
 * Weights are compared as floats, whatever they are stored as. A row has changed when a bit of its weights
 * or state differs, or where the two tables have other optimizers or storage, when a weight differs.
 */
#ifndef DEPLOY_PSCTL_COMPARE_H
#define DEPLOY_PSCTL_COMPARE_H

#include "server/core/shard.h"

#define COMPARE_N_KEYS 8u /* of each kind are named: the smallest */
#define COMPARE_N_TOP_MAX 10000u

struct compare_keys {
    uint32_t n;
    uint64_t items[COMPARE_N_KEYS]; /* ascending */
};

struct compare_drift {
    uint64_t key;
    double l2;
};

struct compare_table {
    const struct table_spec *spec; /* borrowed from a, or from b where only that has it */
    bool is_in_a, is_in_b;
    char obstacle[160]; /* why rows cannot be compared; "": they can */
    uint64_t n_a, n_b;  /* rows */
    uint64_t n_pushes_a, n_pushes_b;
    uint64_t n_only_a, n_only_b, n_changed;
    uint64_t n_restamped; /* weights and state are the same, version or touches are not */
    struct compare_keys only_a, only_b, changed, restamped;
    double drift_mean, drift_p99, drift_max;
    struct compare_drift *top; /* owned: the most drifted, farthest first */
    uint32_t n_top;
};

struct compare {
    struct compare_table *tables; /* owned; those of a, then those that only b has */
    uint32_t n_tables;
};

/* a, b: collect_one()'s. n_top: how many of `top` are wanted of each table, at most COMPARE_N_TOP_MAX. -ENOMEM. */
int compare_shards(struct shard *a, struct shard *b, uint32_t n_top, struct compare *ret,
                   struct err *err) ON_SHARD MUST_CHECK;

/* Is each row, its version and its touches included, and each step count the same? */
bool compare_is_same(const struct compare *c);

/* A zeroed one is fine. */
void compare_free(struct compare *c);

#endif
