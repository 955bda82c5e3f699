/*
 * One row of a table: its head, and the payload behind it.
 *
 *     [ key u64 | stamp u64: version 48, touches 8, flags 8 | weights, optimizer's state ]
 */
#ifndef SERVER_CORE_ROW_H
#define SERVER_CORE_ROW_H

#include "common/base.h"

/* Aligned to 4 bytes only, so that no row pays for padding. */
struct row {
    uint64_t key;
    uint64_t stamp; /* version 48 | touches 8 | flags 8; see row_stamp() */
    float floats[]; /* the payload: weights as stored (weights.h), then state f32 */
} __attribute__((packed, aligned(4)));

#define ROW_VERSION_MAX ((UINT64_C(1) << 48) - 1)
#define ROW_TOUCHES_MAX 255u

/* A row's flags. */
#define ROW_VISITED 2u /* the sweep has seen it: its touches count from then (expire.h) */
#define ROW_AGED \
    8u /* its touches have changed, but by no push, since a scan read it (snapshot_scan.h) */
#define ROW_MAKING 16u /* of a push that may still be refused (row_admission_blocks()) */
#define ROW_FREE 4u    /* the table's own: no row is here, `key` leads to the next such place */

/* The number of the push that last changed the row, shard-wide; 0: none has. */
static inline uint64_t row_version(const struct row *row)
{
    return row->stamp >> 16;
}

/* Pushes that changed it, as counted since the sweep last looked; stays at ROW_TOUCHES_MAX. */
static inline uint32_t row_touches(const struct row *row)
{
    return (uint32_t)(row->stamp >> 8) & 0xffu;
}

static inline uint32_t row_flags(const struct row *row)
{
    return (uint32_t)row->stamp & 0xffu;
}

static inline uint64_t row_stamp(uint64_t version, uint32_t touches, uint32_t flags)
{
    return version << 16 | (uint64_t)touches << 8 | flags;
}

/* Push number `version` has changed the row. */
static inline void row_touch(struct row *row, uint64_t version)
{
    uint32_t touches = row_touches(row);

    row->stamp = row_stamp(version, touches + (touches < ROW_TOUCHES_MAX), row_flags(row));
}

#endif
