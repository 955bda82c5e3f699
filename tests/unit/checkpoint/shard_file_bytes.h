/* A shard's file that a test writes by hand, and its reading. */
#ifndef TESTS_UNIT_CHECKPOINT_SHARD_FILE_BYTES_H
#define TESTS_UNIT_CHECKPOINT_SHARD_FILE_BYTES_H

#include "server/checkpoint/shard_file_reader.h"
#include "tests/unit/checkpoint/fixture.h"

#define SHARD_FILE_BYTES_PATH "data/x.psc"
#define SHARD_FILE_BYTES_ROW \
    (SHARD_FILE_ROW_HEAD_BYTES + 32) /* of the dense table: 4 weights, 4 sums */

/* To its end, or to what is wrong. */
static inline int shard_file_bytes_read_all(struct crash_files *c, struct err *err)
{
    struct shard_file_reader r;
    struct shard_file_reader_chunk piece;
    int status = shard_file_reader_open(&r, &c->ops, SHARD_FILE_BYTES_PATH, err);

    if (status)
        return status;
    do
        status = shard_file_reader_next(&r, &piece);
    while (status > 0);
    shard_file_reader_close(&r);
    return status;
}

#endif
