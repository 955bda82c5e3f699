/*
 * The keys of one push or pull, grouped by the shard that owns them: for each section its keys in their order, and
 * their indices.
 *
 *     keys, order   [all keys]                    section 0: shard 0's, shard 1's ...; section 1 ...
 *     starts        [n_sections][n_shards + 1]    where each group begins in `keys` and `order`
 *
 * Its memory stays for the next push or pull.
 */
#ifndef WORKER_CLIENT_PARTITION_H
#define WORKER_CLIENT_PARTITION_H

#include "common/base.h"

struct partition {
    uint32_t n_shards, n_sections;
    void *memory; /* owned: the three arrays */
    size_t cap_bytes;
    uint64_t *starts, *keys;
    uint32_t *order;
    uint64_t n_keys;
};

/* The keys of one section that one shard owns: keys[i] is the section's number indices[i]. Borrowed from the
 * partition. */
struct partition_group {
    const uint64_t *keys;
    const uint32_t *indices;
    uint32_t n;
};

void partition_init(struct partition *p, uint32_t n_shards);
/* A zeroed one is fine. */
void partition_deinit(struct partition *p);

/* Drops the last request, and reserves memory for n_sections with n_keys keys in all. -ENOMEM: the
 * partition is empty. */
int partition_start(struct partition *p, uint32_t n_sections, uint64_t n_keys) MUST_CHECK;

/* The next section. salt: its table's (table_spec_salt()). */
void partition_add(struct partition *p, const uint64_t *keys, uint32_t n_keys, uint64_t salt);

struct partition_group partition_group(const struct partition *p, uint32_t section,
                                       uint32_t shard);

#endif
