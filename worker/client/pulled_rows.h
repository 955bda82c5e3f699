/*
 * Rows of a pull as the shards have sent them, for a device that decodes them itself. The buffers that they were
 * received to stay with them, so nothing is copied and no thread looks at a row.
 *
 *     parts     [shard]     bytes of its rows, in the order of its keys
 *     to        [n_keys]    of all parts' rows, one behind the other: which of the section each is
 *
 * They are good until the next pull into them.
 */
#ifndef WORKER_CLIENT_PULLED_ROWS_H
#define WORKER_CLIENT_PULLED_ROWS_H

#include "common/bytes.h"
#include "proto/codec.h"

/* Zeroed: empty. */
struct pulled_rows {
    enum codec_id codec; /* of all of them */
    uint32_t n_shards;
    struct codec_rows *parts; /* owned, as buffers: n_shards */
    struct bytes *buffers;    /* where they are */
    uint32_t *to;             /* borrowed: space for the section's keys */
    uint32_t n;               /* rows that have come */
};

void pulled_rows_deinit(struct pulled_rows *p);

/* A pull begins. -ENOMEM. */
int pulled_rows_begin(struct pulled_rows *p, enum codec_id codec, uint32_t n_shards) MUST_CHECK;

/* A shard's rows: numbers[i] is that of row i. Shards come in their order. */
void pulled_rows_take(struct pulled_rows *p, uint32_t shard, const uint32_t *numbers,
                      struct codec_rows rows);

/* The buffer that they are in, for an empty one or an earlier one. */
void pulled_rows_keep(struct pulled_rows *p, uint32_t shard, struct bytes *buffer);

#endif
