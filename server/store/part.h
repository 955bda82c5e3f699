/*
 * One shard's file of a checkpoint, byte for byte: what README.md beside this file draws, as
 * functions from bytes to values and back. part_write.c and part_read.c move the bytes; nothing
 * here touches a file.
 *
 *     header | table record, n_tables times | chunk of rows ... | footer
 *
 * All tables stand before the first row, so that a reader knows what it needs before it meets
 * gigabytes.
 */
#ifndef SERVER_STORE_PART_H
#define SERVER_STORE_PART_H

#include "server/core/shard.h"

#define PART_FORMAT 2u /* what is written; format 1 is read, too */
#define PART_HEADER_BYTES 40u
#define PART_TABLE_BYTES 336u   /* of format 2 */
#define PART_TABLE_1_BYTES 284u /* of format 1 */
#define PART_CHUNK_BYTES 20u    /* the head of a chunk; its rows follow */
#define PART_FOOTER_BYTES 32u
#define PART_ROW_HEAD_BYTES 16u            /* of format 2: key, stamp */
#define PART_ROW_1_HEAD_BYTES 24u          /* of format 1: key, version, last clock */
#define PART_ROWS_MAX_BYTES (1u << 20)     /* of a chunk with more than one row */
#define PART_COUNT_MAX (UINT64_C(1) << 53) /* what the manifest's JSON can carry exactly */

struct part_header {
    uint32_t format;
    uint64_t number;      /* of the checkpoint */
    uint64_t version;     /* the shard's, when it was written */
    uint32_t shard_index; /* on its node */
    uint32_t n_tables;
};

struct part_table {
    struct table_spec spec;
    uint64_t n_pushes, n_rows;
    uint32_t payload_bytes; /* of a row: what stands in memory behind its head */
};

struct part_chunk {
    uint32_t table; /* index of its record in this file */
    uint32_t n_rows, n_bytes;
    uint32_t crc; /* of the first 16 bytes of the chunk's head and of the rows */
};

struct part_footer {
    uint32_t n_tables;
    uint64_t n_rows, n_bytes; /* of the whole file before the footer */
    uint32_t crc;             /* the same */
};

/* What a file turned out to be. */
struct part_facts {
    uint64_t n_bytes;
    uint32_t crc; /* of the whole file */
    uint64_t n_rows, version;
};

/* Of a table record, and of a row, in a file of this format. */
static inline uint32_t part_table_bytes(uint32_t format)
{
    return format == 1 ? PART_TABLE_1_BYTES : PART_TABLE_BYTES;
}

static inline uint32_t part_row_head_bytes(uint32_t format)
{
    return format == 1 ? PART_ROW_1_HEAD_BYTES : PART_ROW_HEAD_BYTES;
}

static inline uint32_t part_row_bytes(uint32_t format, uint32_t payload_bytes)
{
    return part_row_head_bytes(format) + payload_bytes;
}

/* What stands behind a row's head in memory; 0: an optimizer that nobody has. */
uint32_t part_payload_bytes(const struct table_spec *spec);

/* The most rows that stand in a chunk; at least 1. */
uint32_t part_rows_max(uint32_t format, uint32_t payload_bytes);

/* What is encoded is of format PART_FORMAT. */
void part_encode_header(uint8_t dst[static PART_HEADER_BYTES],
                        const struct part_header *header);
void part_encode_table(uint8_t dst[static PART_TABLE_BYTES], const struct part_table *table);
void part_encode_footer(uint8_t dst[static PART_FOOTER_BYTES],
                        const struct part_footer *footer);

/* Fills in the crc, over the chunk's head and its n_bytes of rows. */
void part_encode_chunk(uint8_t dst[static PART_CHUNK_BYTES], const struct part_chunk *chunk,
                       const uint8_t *rows);

/* dst: part_row_bytes(PART_FORMAT, payload_bytes). */
void part_encode_row(uint8_t *dst, const struct row *row, uint32_t payload_bytes);

/* What is wrong with these bytes, in a few words (static storage, or `reason`), or NULL when
 * they are right. */
const char *part_decode_header(const uint8_t src[static PART_HEADER_BYTES],
                               struct part_header *ret);
/* src: part_table_bytes(format). */
const char *part_decode_table(const uint8_t *src, uint32_t format, struct part_table *ret,
                              struct err *reason);
const char *part_decode_footer(const uint8_t src[static PART_FOOTER_BYTES],
                               struct part_footer *ret);

/* The head only: its crc can be judged once the rows are there, by part_chunk_is_whole(). */
const char *part_decode_chunk(const uint8_t src[static PART_CHUNK_BYTES],
                              const struct part_header *header, const struct part_table *tables,
                              struct part_chunk *ret);
bool part_chunk_is_whole(const uint8_t head[static PART_CHUNK_BYTES],
                         const struct part_chunk *chunk, const uint8_t *rows);

/* The head of an encoded row; its payload stays where it is. Of format 1, which knew no
 * touches, they are 0. */
void part_decode_row_head(const uint8_t *src, uint32_t format, uint64_t *ret_key,
                          uint64_t *ret_stamp);

#endif
