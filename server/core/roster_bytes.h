/*
 * A roster as bytes: all but times, which are of one process, and statistics.
 *
 *     u32 format 1 | u64 n_runs | u32 n_jobs | job ...
 *     job      text name | u64 run | u32 mode | u32 bound | u64 reached | u32 n_workers |
 *              u32 n_places, n_workers or more | place ...
 *     place    u32 state | u64 incarnation | u64 fenced_below | u64 clock | u64 last_seq |
 *              u64 refused_seq | u32 refused_status | text name
 *     text     u32 n | n characters
 *
 * Little-endian. Places beyond n_workers have nothing but fences. Whoever stores it adds a checksum;
 * what is read is held against every rule of the roster all the same.
 */
#ifndef SERVER_CORE_ROSTER_BYTES_H
#define SERVER_CORE_ROSTER_BYTES_H

#include "server/core/roster.h"
#include "server/core/state_bytes.h"

/* Without memory: w->no_memory. */
void roster_encode(const struct roster *r, struct state_writer *w);

/* Into a roster that has no job yet; all leases begin at now_ms. PS_ECORRUPT or -ENOMEM: the roster
 * has some of the jobs. */
int roster_decode(struct roster *r, struct state_reader *src, uint64_t now_ms) MUST_CHECK;

#endif
