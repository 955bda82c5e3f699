/*
 * Placement of keys: key -> slot -> shard.
 *
 * A hash divides the key space into PLACEMENT_N_SLOTS slots; the slot map assigns the slots to the shards of the
 * cluster in equal ranges. A shard's number is global: node * shards_per_node + the shard's index on its node.
 *
 *     slot(key, salt)  = mix(key ^ salt) >> 52          4096 of them
 *     shard(slot, n)   = slot * n / 4096                n = all shards of the cluster
 *
 * The salt of a sparse table is 0, so that a key's rows in several tables stand
 * on one shard; the salt of a dense table is the hash of its name, so that small
 * arrays spread out.
 */
#ifndef PROTO_PLACEMENT_H
#define PROTO_PLACEMENT_H

#include "common/base.h"
#include "common/hash.h"

#define PLACEMENT_N_SLOTS 4096u
#define PLACEMENT_N_SHARDS_MAX 1024u

static inline uint32_t placement_slot(uint64_t key, uint64_t salt)
{
    return (uint32_t)(hash_mix(key ^ salt) >> 52);
}

static inline uint32_t placement_slot_shard(uint32_t slot, uint32_t n_shards)
{
    return (uint32_t)(((uint64_t)slot * n_shards) / PLACEMENT_N_SLOTS);
}

static inline uint32_t placement_shard(uint64_t key, uint64_t salt, uint32_t n_shards)
{
    return placement_slot_shard(placement_slot(key, salt), n_shards);
}

/*
 * The identity of a cluster's layout, which two peers compare: XXH3_64bits of
 *
 *     "<shards per node>\n<host:port>\n<host:port>..."
 *
 * decimal, nodes in slot order, without a final newline.
 */
uint64_t placement_map_id(uint32_t shards_per_node, char *const *nodes, uint32_t n_nodes);

#endif
