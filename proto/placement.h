/*
 * Which shard owns a key: key -> slot -> shard.
 *
 * The key space is cut into PLACEMENT_N_SLOTS slots by a hash; the slot map deals the
 * slots out to the shards of the cluster in equal runs. A shard's number is
 * global: node * shards_per_node + the shard's index on its node.
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
 * What two peers compare to know that they mean the same cluster: XXH3_64bits of
 *
 *     "<shards per node>\n<host:port>\n<host:port>..."
 *
 * decimal, nodes in slot order, without a final newline.
 */
uint64_t placement_map_id(uint32_t shards_per_node, char *const *nodes, uint32_t n_nodes);

#endif
