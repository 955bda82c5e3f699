/*
 * The keys of one request, dealt out to the shards that own them: for each section the key
 * numbers, grouped by shard, in their order.
 *
 *     order    [all keys]                    section 0: shard 0's, shard 1's ...; section 1 ...
 *     starts   [n_sections][n_shards + 1]    where each group begins in `order`
 */
#ifndef WORKER_CLIENT_DEAL_H
#define WORKER_CLIENT_DEAL_H

#include "common/base.h"

struct deal {
    uint32_t n_shards, n_sections;
    uint32_t *order;  /* owned */
    uint64_t *starts; /* owned */
    uint64_t n_dealt, cap_order, cap_starts;
};

/* One section's keys on one shard: key numbers numbers[0 .. n). */
struct deal_group {
    const uint32_t *numbers;
    uint32_t n;
};

void deal_init(struct deal *d, uint32_t n_shards);
void deal_deinit(struct deal *d);

/* Forgets the last request and makes room for n_sections with n_keys keys in all. -ENOMEM: an
 * empty deal. */
int deal_begin(struct deal *d, uint32_t n_sections, uint64_t n_keys) MUST_CHECK;

/* Deals the next section's keys. */
void deal_add(struct deal *d, const uint64_t *keys, uint32_t n_keys, uint64_t salt);

struct deal_group deal_group(const struct deal *d, uint32_t section, uint32_t shard);

#endif
