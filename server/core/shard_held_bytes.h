/*
 * What a shard knows beside its tables, as bytes: the roster, and the pushes that wait for their clock.
 *
 *     u32 format 1 | roster (roster_bytes.h) | u32 n_queues | queue ... | payloads
 *     queue    u32 job, its place in the roster | u64 run | u32 n_pushes | push ...
 *     push     u32 rank | u64 incarnation | u64 seq | u64 clock | u32 n_samples | u32 finished |
 *              u32 n_sections | section ...
 *     section  u32 table | u32 codec | u32 k | u32 n_keys | u64 key_bytes | u64 value_bytes
 *
 * Little-endian. Behind the head come the payloads, of each push in the order of the head: of each
 * section its keys and its values, as they travel (proto/README.md). They may be a gigabyte: so a walk
 * (shard_walk.h) makes the head at one moment, and copies the payloads, which do not change, later.
 */
#ifndef SERVER_CORE_SHARD_HELD_BYTES_H
#define SERVER_CORE_SHARD_HELD_BYTES_H

#include "server/core/shard_combine.h"
#include "server/core/state_bytes.h"

/* All but the payloads. Without memory: w->no_memory. */
void shard_held_encode(const struct shard *s, struct state_writer *w);

/* Of one push. */
const uint8_t *shard_held_payload(const struct shard_held *held, size_t *ret_n_bytes);

/* All of it, into a shard that has its tables, and no job yet. Every rule is asked again, as the bytes
 * may be anything. PS_ECORRUPT, -ENOMEM: the shard is only good for shard_free(). */
int shard_held_decode(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
    MUST_CHECK;

#endif
