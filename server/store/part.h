/*
 * One shard's file of a checkpoint, byte for byte: what README.md beside this file draws, as
 * functions from bytes to values and back. part_read.c and the saver move the bytes; nothing
 * here touches a file.
 *
 *     header | table record, n_tables times | chunk ... | footer
 *
 *     chunks   STATE of roster and held pushes, then GONE: keys, of a delta; then ROWS
 *
 * All tables stand before the first row, so that a reader knows what it needs before it meets
 * gigabytes. Counts that are known only when a walk ends stand in the footer.
 */
#ifndef SERVER_STORE_PART_H
#define SERVER_STORE_PART_H

#include "server/core/shard.h"

#define PART_FORMAT 3u       /* what is written; formats 1 and 2 are read, too */
#define PART_TABLE_FORMAT 2u /* since when table records are as they are */
#define PART_HEADER_BYTES 96u
#define PART_HEADER_1_BYTES 40u /* of formats 1 and 2 */
#define PART_TABLE_BYTES 336u   /* of formats 2 and 3 */
#define PART_TABLE_1_BYTES 284u /* of format 1 */
#define PART_CHUNK_BYTES 20u    /* the head of a chunk; what it holds follows */
#define PART_FOOTER_BYTES 56u
#define PART_FOOTER_1_BYTES 32u         /* of formats 1 and 2 */
#define PART_ROW_HEAD_BYTES 16u         /* of formats 2 and 3: key, stamp */
#define PART_ROW_1_HEAD_BYTES 24u       /* of format 1: key, version, last clock */
#define PART_CHUNK_MAX_BYTES (1u << 20) /* of a chunk, but for its head */
#define PART_STATE_MAX_BYTES (UINT64_C(1) << 32)
#define PART_COUNT_MAX (UINT64_C(1) << 53) /* what the manifest's JSON can carry exactly */

/* Whose file: which shard of the cluster, on which node, in which layout. */
struct part_identity {
    uint32_t node, shard,
        n_shards;    /* shard: the cluster's number; n_shards 0: of format 1 or 2 */
    uint64_t map_id; /* of the slot map */
};

struct part_header {
    uint32_t format;
    uint64_t number;      /* of the checkpoint */
    uint64_t version;     /* the shard's, at the walk's first moment */
    uint32_t shard_index; /* on its node */
    uint32_t n_tables;
    struct part_identity identity;
    uint64_t first;        /* the log's last record before the first moment */
    uint64_t base;         /* the checkpoint that this is a delta to; 0: full */
    uint64_t base_version; /* the header's version of that file */
    uint64_t state_bytes;  /* of all STATE chunks */
};

struct part_table {
    struct table_spec spec;
    uint64_t n_pushes;
    uint64_t n_rows;        /* in memory at the first moment; in formats 1 and 2, in the file */
    uint32_t payload_bytes; /* of a row: what stands in memory behind its head */
};

enum part_what { PART_STATE, PART_GONE, PART_ROWS, PART_WHAT_END };

struct part_chunk {
    enum part_what what;
    uint32_t table;   /* index of its record in this file; of STATE 0 */
    uint32_t n_items; /* rows, keys; of STATE 0 */
    uint32_t n_bytes;
    uint32_t crc; /* of the first 16 bytes of the chunk's head and of the n_bytes */
};

struct part_footer {
    uint32_t n_tables;
    uint64_t n_rows, n_gone; /* of all chunks */
    uint64_t through;        /* the log's last record when the walk ended */
    uint64_t last_version;   /* the shard's then: of no row is it greater */
    uint64_t n_bytes;        /* of the whole file before the footer */
    uint32_t crc; /* of header, records and heads of chunks; in formats 1 and 2 of all that */
};

/* What a file turned out to be. */
struct part_facts {
    uint64_t n_bytes;
    uint32_t crc;   /* as the footer's, but with the footer */
    uint32_t shard; /* of the cluster */
    uint64_t n_rows, n_gone, version;
    uint64_t first, through;
    bool is_delta;
};

/* What these pieces take in a file of this format. */
static inline uint32_t part_header_bytes(uint32_t format)
{
    return format < 3 ? PART_HEADER_1_BYTES : PART_HEADER_BYTES;
}

static inline uint32_t part_table_bytes(uint32_t format)
{
    return format == 1 ? PART_TABLE_1_BYTES : PART_TABLE_BYTES;
}

static inline uint32_t part_footer_bytes(uint32_t format)
{
    return format < 3 ? PART_FOOTER_1_BYTES : PART_FOOTER_BYTES;
}

static inline uint32_t part_row_bytes(uint32_t format, uint32_t payload_bytes)
{
    return (format == 1 ? PART_ROW_1_HEAD_BYTES : PART_ROW_HEAD_BYTES) + payload_bytes;
}

/* What stands behind a row's head in memory; 0: an optimizer that nobody has. */
uint32_t part_payload_bytes(const struct table_spec *spec);

/* What is encoded is of format PART_FORMAT. */
void part_encode_header(uint8_t dst[static PART_HEADER_BYTES],
                        const struct part_header *header);
void part_encode_table(uint8_t dst[static PART_TABLE_BYTES], const struct part_table *table);
void part_encode_footer(uint8_t dst[static PART_FOOTER_BYTES],
                        const struct part_footer *footer);

/* Fills in the crc, over the chunk's head and its n_bytes. */
void part_encode_chunk(uint8_t dst[static PART_CHUNK_BYTES], const struct part_chunk *chunk,
                       const uint8_t *bytes);

/* What is wrong with these bytes, in a few words (static storage, or `reason`), or NULL when
 * they are right. src: magic and format; then all of the piece, in a file of this format. */
#define PART_FORMAT_AT_BYTES 12u
const char *part_decode_format(const uint8_t src[static PART_FORMAT_AT_BYTES],
                               uint32_t *ret_format);
const char *part_decode_header(const uint8_t *src, uint32_t format, struct part_header *ret);
const char *part_decode_table(const uint8_t *src, uint32_t format, struct part_table *ret,
                              struct err *reason);
const char *part_decode_footer(const uint8_t *src, uint32_t format, struct part_footer *ret);

/* The head only: its crc can be judged once the rest is there, by part_chunk_is_whole(). */
const char *part_decode_chunk(const uint8_t src[static PART_CHUNK_BYTES],
                              const struct part_header *header, const struct part_table *tables,
                              struct part_chunk *ret);
bool part_chunk_is_whole(const uint8_t head[static PART_CHUNK_BYTES],
                         const struct part_chunk *chunk, const uint8_t *bytes);

/* Rows of format 1, in place, as PART_FORMAT has them: with a stamp, which has no touches. */
void part_convert_rows_1(uint8_t *rows, uint32_t n_rows, uint32_t payload_bytes);

#endif
