/* A shard's file that a test writes by hand, and its reading. */
#ifndef TESTS_UNIT_STORE_PART_H
#define TESTS_UNIT_STORE_PART_H

#include "server/store/part_read.h"
#include "tests/unit/store/fixture.h"

#define PART_PATH "data/x.psc"
#define PART_ROW_BYTES (PART_ROW_HEAD_BYTES + 32) /* of the dense table: 4 weights, 4 sums */

/* To its end, or to what is wrong. */
static inline int part_read_all(struct crash_files *c, struct err *err)
{
    struct part_reader r;
    struct part_piece piece;
    int status = part_read_open(&r, &c->ops, PART_PATH, err);

    if (status)
        return status;
    do
        status = part_read_more(&r, &piece);
    while (status > 0);
    part_read_close(&r);
    return status;
}

#endif
