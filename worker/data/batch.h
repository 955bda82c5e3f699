/*
 * One mini-batch as the reader fills it and the model reads it.
 *
 *     label     [n][n_labels]        0 or 1
 *     numeric   [n][n_numeric]       after the transform (log1p, standardised ...)
 *     starts    [n * n_fields + 1]   bag b = sample * n_fields + field holds the ids
 *                                    starts[b] .. starts[b + 1] - 1
 *     keys      [starts[last]]       hash of (column, token); a missing value leaves the bag
 *                                    empty or has a key of its own
 *
 * and what dedup adds (batch_dedup):
 *     unique    [n_unique]           ascending; with groups, by group, then ascending
 *     row_of    [starts[last]]       keys[i] == unique[row_of[i]]
 *     order     [starts[last]]       the positions of keys, grouped by unique key: those of
 *     order_starts [n_unique + 1]    unique[u] are order[order_starts[u]] ..
 *                                    order[order_starts[u + 1] - 1], ascending
 *
 * So a sum over all uses of a row, such as its gradient, is one run through `order`, each row
 * written once, and the rows can be divided among threads; the terms of a row come in the order
 * of the bags, as they do in a run over row_of. Only batch_dedup() fills them.
 *
 * Fields whose rows are in different tables are in different groups: the keys of group g are
 * unique[group_starts[g]] .. unique[group_starts[g + 1] - 1].
 */
#ifndef WORKER_DATA_BATCH_H
#define WORKER_DATA_BATCH_H

#include "common/base.h"

#define BATCH_GROUPS_MAX 60u

/* The group of each field. */
struct batch_groups {
    uint32_t n;              /* at most BATCH_GROUPS_MAX */
    const uint8_t *of_field; /* owned by whoever made it; [n_fields] */
};

/* The allocator of arrays that a device copies. Any thread. */
struct batch_allocator {
    void *(*alloc)(void *arg, size_t n_bytes); /* NULL: there is none left */
    void (*free)(void *arg, void *memory, size_t n_bytes);
    void *arg; /* borrowed */
};

/* Working memory of a dedup, used again by the next one: of one thread at a time. Starts as zeros. */
struct batch_scratch {
    void *memory; /* owned */
    size_t n_bytes;
    unsigned bits; /* of the number of slots that the last batch needed */
};

struct batch {
    uint32_t n_max, n_labels, n_numeric, n_fields;
    uint32_t n;       /* samples in it */
    float *label;     /* owned, of `memory`, as all arrays; n_max x n_labels */
    float *numeric;   /* n_max x n_numeric */
    uint32_t *starts; /* n_max * n_fields + 1 */
    uint64_t *keys;   /* keys_cap, as the next three */
    uint32_t *row_of;
    uint64_t *unique;
    uint32_t *order;
    uint32_t *order_starts; /* keys_cap + 1 */
    uint32_t n_keys, keys_cap, n_unique;
    uint64_t number;                             /* of the batch in its pass, from 0 */
    const struct batch_groups *groups;           /* borrowed; NULL: all fields are in one */
    uint32_t group_starts[BATCH_GROUPS_MAX + 1]; /* of dedup, with groups alone */
    struct batch_scratch scratch;                /* owned: batch_dedup's */
    const struct batch_allocator *memory;        /* borrowed; NULL: plain */
};

/* Buffers for n_max samples of one label; -ENOMEM. keys grow as bags need. */
int batch_init(struct batch *b, uint32_t n_max, uint32_t n_numeric, uint32_t n_fields)
    MUST_CHECK;

/* The same with what a device copies in such memory, borrowed until batch_deinit(); NULL: plain memory. */
int batch_init_in(struct batch *b, const struct batch_allocator *memory, uint32_t n_max,
                  uint32_t n_numeric, uint32_t n_fields) MUST_CHECK;

/* The same of several labels. */
int batch_init_labels(struct batch *b, const struct batch_allocator *memory, uint32_t n_max,
                      uint32_t n_labels, uint32_t n_numeric, uint32_t n_fields) MUST_CHECK;
void batch_deinit(struct batch *b);
void batch_clear(struct batch *b);
/* Takes the last sample out again. */
void batch_drop_last(struct batch *b);

/* Makes space for n_more keys; the results of dedup may be lost. -ENOMEM: the keys are unchanged. */
int batch_reserve_keys(struct batch *b, uint32_t n_more) MUST_CHECK;

/* The place in `unique` at which group g begins; of g == number of groups, n_unique. */
static inline uint32_t batch_group_start(const struct batch *b, uint32_t g)
{
    return b->groups ? b->group_starts[g] : g ? b->n_unique : 0;
}

/* Fills unique, n_unique, row_of, order, order_starts. -ENOMEM. */
int batch_dedup(struct batch *b) MUST_CHECK;

/* The same in other working memory: a thread's own stays in its caches. */
int batch_dedup_with(struct batch *b, struct batch_scratch *memory) MUST_CHECK;
void batch_scratch_deinit(struct batch_scratch *memory);

/* Dedup elsewhere, such as on a device. What open() makes is of one thread at a time. */
struct batch_deduper {
    void *(*open)(void *arg); /* NULL: there is none; batch_dedup_with() is due */
    /* The numbers of batch_dedup_with(). Not 0: it cannot, and batch_dedup_with() is due. */
    int (*run)(void *one, struct batch *b);
    void (*close)(void *one);
    void *arg; /* borrowed */
};

#endif
