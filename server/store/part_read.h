/*
 * Reads one shard's file of a checkpoint from its first byte to its last, and holds every
 * checksum and count on the way.
 *
 *     part_read_open()    header, tables
 *     part_read_rows()    1, 1, 1 ... 0
 *     part_read_close()
 *
 * What is wrong with the file is PS_ECORRUPT and a sentence with the offset and the file. What
 * has been handed out counts only once part_read_rows() has returned 0: a fault may stand in
 * the last byte.
 */
#ifndef SERVER_STORE_PART_READ_H
#define SERVER_STORE_PART_READ_H

#include "common/file.h"
#include "server/store/part.h"

struct part_reader {
    struct part_header header;
    struct part_table *tables; /* owned: header.n_tables of them */
    struct part_facts facts;   /* complete when part_read_rows() has returned 0 */

    const struct file_ops *files; /* the rest is part_read.c's */
    const char *path;             /* borrowed until part_read_close() */
    int fd;
    uint64_t *rows_left; /* owned: of each table */
    uint8_t *rows;       /* owned: one chunk of them */
    struct err *err;
};

struct part_rows {
    uint32_t format, table, n_rows, row_bytes;
    const uint8_t *bytes; /* n_rows encoded rows; good until the next call */
};

/* On failure nothing is left open. */
int part_read_open(struct part_reader *r, const struct file_ops *files, const char *path,
                   struct err *err) MUST_CHECK;

/* 1: *ret holds a chunk; 0: the file is whole and has been read to its end; else a status. */
int part_read_rows(struct part_reader *r, struct part_rows *ret) MUST_CHECK;

/* Row i of a chunk: its payload, borrowed as long as the chunk. */
const void *part_read_row(const struct part_rows *rows, uint32_t i, uint64_t *ret_key,
                          uint64_t *ret_stamp);

void part_read_close(struct part_reader *r);

#endif
