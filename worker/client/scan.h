/*
 * A scan's place on each shard, and the rows of its last call. It travels as a section of a pull (proto/section.h): the
 * encoder asks and takes here; ps.h has the interface for users.
 *
 *     cursor ---- ps_pull_start(): scan_ask() ----> answers: scan_take() ----> all decoded: cursor = next
 *        ^                                             one failed: cursor stays, the rows are dropped
 *        +------------- asked again ---------------------------+
 */
#ifndef WORKER_CLIENT_SCAN_H
#define WORKER_CLIENT_SCAN_H

#include "worker/client/ps_types.h"

/* Fills the section for the shard; it asks for nothing where the scan is over. */
void scan_ask(const struct ps_scan *scan, uint32_t shard, struct section *ret);

/* The shard's answer to that. PS_ECOUNT, -ENOMEM, -ESTALE. */
int scan_take(struct ps_scan *scan, uint32_t shard, const uint8_t *values, size_t value_bytes)
    MUST_CHECK;

#endif
