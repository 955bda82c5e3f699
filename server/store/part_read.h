/*
 * Reads one shard's file of a checkpoint from its first byte to its last, and holds every
 * checksum and count on the way.
 *
 *     part_read_open()    header, tables
 *     part_read_more()    1, 1, 1 ... 0
 *     part_read_close()
 *
 * What is wrong with the file is PS_ECORRUPT and a sentence with the offset and the file. What
 * has been handed out counts only once part_read_more() has returned 0: a fault may stand in
 * the last byte.
 */
#ifndef SERVER_STORE_PART_READ_H
#define SERVER_STORE_PART_READ_H

#include "common/file.h"
#include "server/store/part.h"

struct part_reader {
    struct part_header header;
    struct part_table *tables; /* owned: header.n_tables of them */
    struct part_facts facts;   /* complete when part_read_more() has returned 0 */

    const struct file_ops *files; /* the rest is part_read.c's */
    const char *path;             /* borrowed until part_read_close() */
    int fd;
    enum part_what what;   /* of the chunk before: they come in this order */
    uint64_t state_bytes;  /* of the chunks so far */
    uint64_t last_version; /* of the rows so far */
    uint64_t *n_rows;      /* owned: of each table so far */
    uint8_t *bytes;        /* owned: one chunk */
    size_t bytes_cap;
    struct err *err;
};

/* A chunk: bytes of state; keys u64 in the machine's order; rows as PART_FORMAT has them. */
struct part_piece {
    enum part_what what;
    uint32_t table, n_items;
    size_t item_bytes, n_bytes; /* item_bytes: of a row, of a key; else 0 */
    const uint8_t *bytes;       /* good until the next call */
};

/* On failure nothing is left open. */
int part_read_open(struct part_reader *r, const struct file_ops *files, const char *path,
                   struct err *err) MUST_CHECK;

/* 1: *ret holds a chunk; 0: the file is whole and has been read to its end; else a status. */
int part_read_more(struct part_reader *r, struct part_piece *ret) MUST_CHECK;

/* Row i of a chunk: its payload, borrowed as long as the chunk. The stamp has no flags. */
const void *part_read_row(const struct part_piece *piece, uint32_t i, uint64_t *ret_key,
                          uint64_t *ret_stamp);

void part_read_close(struct part_reader *r);

#endif
