/*
 * The state of a shard beside its tables, as bytes: the membership, and the pushes held for lock step. Without times,
 * which belong to one process, and without statistics.
 *
 *     u32 format 1 | membership | u32 n_queues | queue ... | payloads
 *     membership  u32 format 1, 2 or 3 | u64 n_runs | u32 n_jobs | job ... | format 2, 3: learning of each job |
 *              format 3: u32 n_backups of each job
 *     job      text name | u64 run | u32 mode | u32 bound | u64 applied_end | u32 n_workers |
 *              u32 n_places, n_workers or more | place ...
 *     place    u32 state | u64 incarnation | u64 fenced_below | u64 clock | u64 last_seq |
 *              u64 refused_seq | u32 refused_status | text name
 *     learning u32 n_points; if not 0: u64 step_samples | u64 began_ms | u64 began_samples | point ... |
 *              u32 n_workers | worker ...
 *     point    u64 unix_ms | u64 clock | u64 samples | u64 weight | f32 samples_per_s, loss, auc, logloss
 *     worker   u32 rank | u64 unix_ms | u64 incarnation | u64 validated_ms | u64 samples | u64 weight |
 *              u32 n_validations | f32 samples_per_s, loss, auc, logloss | 6 u32 busy, thousandths
 *     queue    u32 job, its index in the membership | u64 run | u32 n_pushes | push ...
 *     push     u32 rank | u64 incarnation | u64 seq | u64 clock | u32 n_samples | u32 finished |
 *              u32 n_sections | section ...
 *     section  u32 table | u32 codec | u32 k | u32 n_keys | u64 key_bytes | u64 value_bytes
 *     text     u32 n | n characters
 *
 * Little-endian; a float that is not known is NaN. Without any learning the membership's format is 1; with backup
 * workers it is 3, with learning of no points where there is none. Places beyond
 * n_workers have only fences. The payloads of the pushes follow in the order of the head: the keys and values of each
 * section, as they were sent (proto/README.md). They may be a gigabyte, so a scan (snapshot_scan.h) makes the head at
 * one moment, and copies the payloads, which do not change, later. The file that stores all this adds a checksum.
 */
#ifndef SERVER_CORE_SNAPSHOT_META_H
#define SERVER_CORE_SNAPSHOT_META_H

#include "server/core/bsp.h"

/* All but the payloads, appended to dst. -ENOMEM: dst holds a part of it. */
int snapshot_meta_encode(const struct shard *s, struct bytes *dst) MUST_CHECK;

/* Of one push. */
const uint8_t *snapshot_meta_payload(const struct bsp_held *held, size_t *ret_n_bytes);

/* All of it, into a shard that has its tables, and no job yet. Every rule is checked, as the bytes may be
 * anything. PS_ECORRUPT, -ENOMEM: the shard is only good for shard_free(). */
int snapshot_meta_decode(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
    MUST_CHECK;

#endif
