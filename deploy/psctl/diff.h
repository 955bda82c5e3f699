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
#ifndef DEPLOY_PSCTL_DIFF_H
#define DEPLOY_PSCTL_DIFF_H

#include "deploy/psctl/options.h"
#include "server/core/shard.h"

/*
 * A checksum of a table's content, equal in any layout and order of rows: the sum (mod 2^64) over all rows of
 * XXH3_64bits(key u64, stamp u64, payload), little-endian, the stamp without flags.
 */
uint64_t diff_digest(const struct shard_table *table);

#define DIFF_N_KEYS 8u /* of each kind are named: the smallest */
#define DIFF_N_TOP_MAX 10000u

struct diff_keys {
    uint32_t n;
    uint64_t items[DIFF_N_KEYS]; /* ascending */
};

struct diff_drift {
    uint64_t key;
    double l2;
};

struct diff_table {
    const struct table_spec *spec; /* borrowed from a, or from b where only that has it */
    bool is_in_a, is_in_b;
    char obstacle[160]; /* why rows cannot be compared; "": they can */
    uint64_t n_a, n_b;  /* rows */
    uint64_t n_pushes_a, n_pushes_b;
    uint64_t n_only_a, n_only_b, n_changed;
    uint64_t n_restamped; /* weights and state are the same, version or touches are not */
    struct diff_keys only_a, only_b, changed, restamped;
    double drift_mean, drift_p99, drift_max;
    struct diff_drift *top; /* owned: the most drifted, farthest first */
    uint32_t n_top;
};

struct diff {
    struct diff_table *tables; /* owned; those of a, then those that only b has */
    uint32_t n_tables;
};

/* a, b: load_cluster_one()'s. n_top: how many of `top` are wanted of each table, at most DIFF_N_TOP_MAX. -ENOMEM. */
int diff_shards(struct shard *a, struct shard *b, uint32_t n_top, struct diff *ret,
                struct err *err) ON_SHARD MUST_CHECK;

/* True if each row, its version and touches included, and each step count are equal. */
bool diff_is_same(const struct diff *c);

/* A zeroed one is fine. */
void diff_free(struct diff *c);

/* psctl diff and replay: states of models, side by side. */
/* words: A, B. EXIT_FAILED where they differ, as diff(1) has it. */
int diff_run(const struct options *o, const char *const *words, uint32_t n_words);

/* words[0]: PATH. EXIT_FAILED where it differs from o->against. */
int diff_replay(const struct options *o, const char *const *words, uint32_t n_words);

#endif
