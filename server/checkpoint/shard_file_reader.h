/*
 * Reads one shard's file of a checkpoint from its first byte to its last, and checks every
 * checksum and count.
 *
 *     shard_file_reader_open()    header, tables
 *     shard_file_reader_next()    1, 1, 1 ... 0
 *     shard_file_reader_close()
 *
 * A corrupt file is PS_ECORRUPT and a sentence with the offset and the file. Chunks count only once
 * shard_file_reader_next() has returned 0: the error may be in the last byte.
 */
#ifndef SERVER_CHECKPOINT_SHARD_FILE_READER_H
#define SERVER_CHECKPOINT_SHARD_FILE_READER_H

#include "common/file.h"
#include "server/checkpoint/shard_file.h"

struct shard_file_reader {
    struct shard_file_header header;
    struct shard_file_table *tables; /* owned: header.n_tables of them */
    struct shard_file_facts facts;   /* complete when shard_file_reader_next() has returned 0 */

    const struct file_ops *files; /* private from here on */
    const char *path;             /* borrowed until shard_file_reader_close() */
    int fd;
    enum shard_file_what what; /* of the chunk before: they come in this order */
    uint64_t state_bytes;      /* of the chunks so far */
    uint64_t last_version;     /* of the rows so far */
    uint64_t *n_rows;          /* owned: of each table so far */
    uint8_t *bytes;            /* owned: one chunk */
    size_t bytes_cap;
    struct err *err;
};

/* A chunk: bytes of state; keys u64 in the machine's order; rows as SHARD_FILE_FORMAT has them. */
struct shard_file_reader_chunk {
    enum shard_file_what what;
    uint32_t table, n_items;
    size_t item_bytes, n_bytes; /* item_bytes: of a row, of a key; else 0 */
    const uint8_t *bytes;       /* good until the next call */
};

/* On failure nothing is left open. */
int shard_file_reader_open(struct shard_file_reader *r, const struct file_ops *files,
                           const char *path, struct err *err) MUST_CHECK;

/* 1: *ret holds a chunk; 0: the file is whole and has been read to its end; else a status. */
int shard_file_reader_next(struct shard_file_reader *r, struct shard_file_reader_chunk *ret)
    MUST_CHECK;

/* Row i of a chunk: its payload, borrowed as long as the chunk. The stamp has no flags. */
const void *shard_file_reader_row(const struct shard_file_reader_chunk *chunk, uint32_t i,
                                  uint64_t *ret_key, uint64_t *ret_stamp);

void shard_file_reader_close(struct shard_file_reader *r);

#endif
