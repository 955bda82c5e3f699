/*
 * A section of a pull that scans a table (section.h, "A scan"): rows in the order of table_range(), from its cursor on.
 * The table may change between two slices as it likes, and the shard may restart.
 */
#ifndef SERVER_CORE_SCAN_H
#define SERVER_CORE_SCAN_H

#include "server/core/shard_internal.h"

/* How many there are in a pull. They share the bytes of one slice: so an answer is planned with no more memory, however
 * many it has. */
uint32_t scan_n_sections(const struct pull *pull);

/* Its codec has been checked. Sets row_bytes; *ret_bytes: the most that its answer takes. PS_ETOOBIG: more than
 * max_bytes. */
int scan_plan(struct shard_section *section, uint32_t n_scans, size_t max_bytes,
              size_t *ret_bytes, struct err *err) MUST_CHECK;

/* Writes the answer. *ret_used: what it costs, in bytes of a slice. -ENOMEM. */
int scan_slice(struct shard *s, struct shard_section *section, uint32_t n_scans, uint8_t *dst,
               size_t *ret_bytes, uint64_t *ret_used, struct err *err) MUST_CHECK;

#endif
