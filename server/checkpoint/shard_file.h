/*
 * Format of one shard's file of a checkpoint: encoders and decoders of the bytes that README.md beside this
 * file specifies. shard_file_reader.c and shard_file_writer.c move the bytes; nothing
 * here touches a file.
 *
 *     header | table record, n_tables times | chunk ... | footer
 *
 *     chunks   STATE of membership and held pushes, then GONE: keys, of a delta; then ROWS
 *
 * All tables stand before the first row, so a reader knows the tables before it reads
 * gigabytes. Counts that are known only when a scan ends stand in the footer.
 */
#ifndef SERVER_CHECKPOINT_SHARD_FILE_H
#define SERVER_CHECKPOINT_SHARD_FILE_H

#include "server/core/shard.h"

#define SHARD_FILE_FORMAT 3u       /* what is written; formats 1 and 2 are read, too */
#define SHARD_FILE_TABLE_FORMAT 2u /* since when table records are as they are */
#define SHARD_FILE_HEADER_BYTES 96u
#define SHARD_FILE_HEADER_1_BYTES 40u /* of formats 1 and 2 */
#define SHARD_FILE_TABLE_BYTES 336u   /* of formats 2 and 3 */
#define SHARD_FILE_TABLE_1_BYTES 284u /* of format 1 */
#define SHARD_FILE_CHUNK_BYTES 20u    /* the head of a chunk; what it holds follows */
#define SHARD_FILE_FOOTER_BYTES 56u
#define SHARD_FILE_FOOTER_1_BYTES 32u         /* of formats 1 and 2 */
#define SHARD_FILE_ROW_HEAD_BYTES 16u         /* of formats 2 and 3: key, stamp */
#define SHARD_FILE_ROW_1_HEAD_BYTES 24u       /* of format 1: key, version, last clock */
#define SHARD_FILE_CHUNK_MAX_BYTES (1u << 20) /* of a chunk, but for its head */
#define SHARD_FILE_STATE_MAX_BYTES (UINT64_C(1) << 32)
#define SHARD_FILE_COUNT_MAX \
    (UINT64_C(1) << 53) /* what the manifest's JSON can carry exactly */

/* Whose file: which shard of the cluster, on which node, in which layout. */
struct shard_file_identity {
    uint32_t node, shard,
        n_shards;    /* shard: the cluster's number; n_shards 0: of format 1 or 2 */
    uint64_t map_id; /* of the slot map */
};

struct shard_file_header {
    uint32_t format;
    uint64_t number;      /* of the checkpoint */
    uint64_t version;     /* the shard's, at the scan's first moment */
    uint32_t shard_index; /* on its node */
    uint32_t n_tables;
    struct shard_file_identity identity;
    uint64_t first;        /* the log's last record before the first moment */
    uint64_t base;         /* the checkpoint that this is a delta to; 0: full */
    uint64_t base_version; /* the header's version of that file */
    uint64_t state_bytes;  /* of all STATE chunks */
};

struct shard_file_table {
    struct table_spec spec;
    uint64_t n_pushes;
    uint64_t n_rows;        /* in memory at the first moment; in formats 1 and 2, in the file */
    uint32_t payload_bytes; /* of a row: what stands in memory behind its head */
};

enum shard_file_what {
    SHARD_FILE_STATE,
    SHARD_FILE_GONE,
    SHARD_FILE_ROWS,
    SHARD_FILE_WHAT_END
};

struct shard_file_chunk {
    enum shard_file_what what;
    uint32_t table;   /* index of its record in this file; of STATE 0 */
    uint32_t n_items; /* rows, keys; of STATE 0 */
    uint32_t n_bytes;
    uint32_t crc; /* of the first 16 bytes of the chunk's head and of the n_bytes */
};

struct shard_file_footer {
    uint32_t n_tables;
    uint64_t n_rows, n_gone; /* of all chunks */
    uint64_t through;        /* the log's last record when the scan ended */
    uint64_t last_version;   /* the shard's then: of no row is it greater */
    uint64_t n_bytes;        /* of the whole file before the footer */
    uint32_t crc; /* of header, records and heads of chunks; in formats 1 and 2 of all that */
};

/* What a file turned out to be. */
struct shard_file_facts {
    uint64_t n_bytes;
    uint32_t crc;   /* as the footer's, but with the footer */
    uint32_t shard; /* of the cluster */
    uint64_t n_rows, n_gone, version;
    uint64_t first, through;
    bool is_delta;
};

/* What these pieces take in a file of this format. */
static inline uint32_t shard_file_header_bytes(uint32_t format)
{
    return format < 3 ? SHARD_FILE_HEADER_1_BYTES : SHARD_FILE_HEADER_BYTES;
}

static inline uint32_t shard_file_table_bytes(uint32_t format)
{
    return format == 1 ? SHARD_FILE_TABLE_1_BYTES : SHARD_FILE_TABLE_BYTES;
}

static inline uint32_t shard_file_footer_bytes(uint32_t format)
{
    return format < 3 ? SHARD_FILE_FOOTER_1_BYTES : SHARD_FILE_FOOTER_BYTES;
}

static inline uint32_t shard_file_row_bytes(uint32_t format, uint32_t payload_bytes)
{
    return (format == 1 ? SHARD_FILE_ROW_1_HEAD_BYTES : SHARD_FILE_ROW_HEAD_BYTES) +
           payload_bytes;
}

/* What stands behind a row's head in memory; 0: an optimizer that nobody has. */
uint32_t shard_file_payload_bytes(const struct table_spec *spec);

/* What is encoded is of format SHARD_FILE_FORMAT. */
void shard_file_encode_header(uint8_t dst[static SHARD_FILE_HEADER_BYTES],
                              const struct shard_file_header *header);
void shard_file_encode_table(uint8_t dst[static SHARD_FILE_TABLE_BYTES],
                             const struct shard_file_table *table);
void shard_file_encode_footer(uint8_t dst[static SHARD_FILE_FOOTER_BYTES],
                              const struct shard_file_footer *footer);

/* Fills in the crc, over the chunk's head and its n_bytes. */
void shard_file_encode_chunk(uint8_t dst[static SHARD_FILE_CHUNK_BYTES],
                             const struct shard_file_chunk *chunk, const uint8_t *bytes);

/* What is wrong with these bytes, in a few words (static storage, or `reason`), or NULL when
 * they are right. src: magic and format; then all of the piece, in a file of this format. */
#define SHARD_FILE_FORMAT_AT_BYTES 12u
const char *shard_file_decode_format(const uint8_t src[static SHARD_FILE_FORMAT_AT_BYTES],
                                     uint32_t *ret_format);
const char *shard_file_decode_header(const uint8_t *src, uint32_t format,
                                     struct shard_file_header *ret);
const char *shard_file_decode_table(const uint8_t *src, uint32_t format,
                                    struct shard_file_table *ret, struct err *reason);
const char *shard_file_decode_footer(const uint8_t *src, uint32_t format,
                                     struct shard_file_footer *ret);

/* The head only: its crc can be judged once the rest is there, by shard_file_chunk_is_whole(). */
const char *shard_file_decode_chunk(const uint8_t src[static SHARD_FILE_CHUNK_BYTES],
                                    const struct shard_file_header *header,
                                    const struct shard_file_table *tables,
                                    struct shard_file_chunk *ret);
bool shard_file_chunk_is_whole(const uint8_t head[static SHARD_FILE_CHUNK_BYTES],
                               const struct shard_file_chunk *chunk, const uint8_t *bytes);

/* Rows of format 1, in place, as SHARD_FILE_FORMAT has them: with a stamp, which has no touches. */
void shard_file_convert_rows_1(uint8_t *rows, uint32_t n_rows, uint32_t payload_bytes);

#endif
