/*
 * Format of DATA_DIR/checkpoints/NUMBER/shard-III.psc, one shard's file of a checkpoint: its encoders and decoders.
 * shard_file_reader.c and shard_file_writer.c move the bytes; nothing here touches a file.
 *
 *     header | table record, n_tables times | chunk ... | footer
 *
 * All tables stand before the first row, so a reader knows them before it reads gigabytes. Counts that are known only
 * at the end of a scan stand in the footer. Integers and floats are little-endian; nothing is aligned or padded. crc
 * is crc32c (Castagnoli).
 *
 *     Header, 96 bytes
 *          0      8  magic          PSDPART and a newline
 *          8      4  format         3; 4 if there are records of dropped tables
 *         12      4  shard_index    on its node: the III of the name
 *         16      8  number         of the checkpoint
 *         24      8  version        the shard's version at `first`: the number of its last push
 *         32      4  n_tables       records, those of dropped tables included
 *         36     12  node, shard,   u32 each; shard: the cluster's number
 *                    n_shards
 *         48      8  map_id         of the slot map
 *         56      8  first          the log's last record when the scan began; 0: none
 *         64      8  base           the checkpoint that this is a delta to; 0: it is full
 *         72      8  base_version   version of that file
 *         80      8  state_bytes    of all chunks of state
 *         88      4  zero
 *         92      4  crc            of bytes 0..91
 *
 *     Table record, 336 bytes: struct table_spec (proto/table_spec.h), then the table's counts
 *          0      4  tag            TABL
 *          4    128  name           zeros behind it, at least one
 *        132      4  kind           0 sparse, 1 dense
 *        136      4  dim
 *        140      8  n_floats       dense; of a sparse table row_decay, f32, and 4 bytes of zeros
 *        148      8  seed
 *        156      4  init           0 zero, 1 uniform, 2 normal
 *        160      4  init_scale     f32
 *        164      4  optimizer      0 sgd, 1 momentum, 2 adagrad, 3 rowwise_adagrad, 4 adam, 5 ftrl, 6 adamw, 7 lion,
 *                                   8 lamb, 9 lars, 10 sm3, 11 came, 12 sm3_matrix
 *        168     48  parameters     12 f32, see below
 *        216      4  warmup_clocks
 *        220      4  decay          0 none, 1 linear, 2 exp, 3 inv_sqrt, 4 cosine, 5 step, 6 plateau
 *        224      8  decay_start
 *        232      8  decay_clocks
 *        240      4  decay_rate     f32
 *        244      4  decay_floor    f32
 *        248      4  clip_norm      f32
 *        252      4  mode           0 as the job says, 1 async, 2 ssp, 3 bsp
 *        256      4  bound
 *        260      4  storage        of the weights: 0 fp32, 1 bf16, 2 fp16
 *        264      4  admit_touches
 *        268      8  admit_clocks
 *        276      8  idle_clocks
 *        284      4  ttl_s
 *        288      4  rare_touches
 *        292      8  rare_clocks
 *        300      4  victims        0 none, 1 oldest, 2 rarest
 *        304      8  max_bytes
 *        312      8  n_pushes       of the table: its optimizer's step count
 *        320      8  n_rows         in memory at `first`; a full file has about as many
 *        328      4  payload_bytes  of a row: weights as stored, zeros up to a multiple of 4, optimizer state in f32
 *        332      4  crc            of bytes 0..331
 *
 *     Record of dropped tables, 336 bytes, in format 4: it stands where their records would. A table's number is the
 *     number of tables before it, live or dropped.
 *          0      4  tag            DROP
 *          4      4  n_dropped      tables in a row, 1 or more
 *          8    324  zero
 *        332      4  crc            of bytes 0..331
 *
 *     parameters: learning_rate, epsilon, momentum, nesterov, weight_decay, beta1, beta2, initial_accumulator,
 *     lr_decay, ftrl_beta, ftrl_l1, ftrl_l2
 *
 *     Chunk: a head of 20 bytes, then at most 1 MiB unless a single row is longer
 *          0      4  tag            STAT, GONE or ROWS, which come in this order
 *          4      4  table          index of the table's record, from 0; of state 0
 *          8      4  n_items        rows, keys: 1 or more; of state 0
 *         12      4  n_bytes        1 or more
 *         16      4  crc            of bytes 0..15 and what follows
 *         20 n_bytes                 STAT: a piece of membership and held pushes (server/core/snapshot_meta.h)
 *                                   GONE, of a delta: keys (u64) of the rows removed since its base
 *                                   ROWS: each key u64, stamp u64, payload
 *
 *     Footer, 56 bytes, and nothing behind it
 *          0      4  tag            END and a newline
 *          4      4  n_tables       as in the header
 *          8      8  n_rows         of all chunks
 *         16      8  n_gone         the same
 *         24      8  through        the log's last record when the scan ended
 *         32      8  last_version   the shard's version at `through`
 *         40      8  n_bytes        of the file before the footer
 *         48      4  crc            of header, table records and the heads of all chunks
 *         52      4  crc            of the footer's bytes 0..51
 *
 * A row's stamp is version << 16 | touches << 8: the number of the push that last changed the row (48 bits, at most
 * last_version), the number of its counted pushes (8 bits), and 8 zero bits. A row that was removed and made again
 * during the scan may stand there twice; the last one counts.
 *
 * Formats 1 and 2 are read, not written. Their header is bytes 0..35 above and the crc of these. Their footer is
 * tag, n_tables, n_rows, n_bytes, the crc of all bytes before it, and its own crc. They hold chunks of rows only,
 * exact n_rows, and no row above the header's version. Without a log position, membership and held pushes, only
 * their rows can be used (loader_reshard()). Format 1's table record has 284 bytes: bytes 0..259 as above, then
 * n_pushes u64, n_rows u64, row_floats u32 (dim and the optimizer's state, all f32), and the crc of bytes 0..279. Its
 * rows are key u64, version u64, last clock u64 (skipped), row_floats f32; its tables are stored in fp32 without
 * limits.
 */
#ifndef SERVER_CHECKPOINT_SHARD_FILE_H
#define SERVER_CHECKPOINT_SHARD_FILE_H

#include "server/core/shard.h"

#define SHARD_FILE_FORMAT 3u       /* what is written; formats 1 and 2 are read, too */
#define SHARD_FILE_FORMAT_DROP 4u  /* what is written where tables were dropped */
#define SHARD_FILE_TABLE_FORMAT 2u /* the format that introduced this table record */
#define SHARD_FILE_HEADER_BYTES 96u
#define SHARD_FILE_HEADER_1_BYTES 40u /* of formats 1 and 2 */
#define SHARD_FILE_TABLE_BYTES 336u   /* of formats 2 and 3 */
#define SHARD_FILE_TABLE_1_BYTES 284u /* of format 1 */
#define SHARD_FILE_CHUNK_BYTES 20u    /* the head of a chunk */
#define SHARD_FILE_FOOTER_BYTES 56u
#define SHARD_FILE_FOOTER_1_BYTES 32u         /* of formats 1 and 2 */
#define SHARD_FILE_ROW_HEAD_BYTES 16u         /* of formats 2 and 3: key, stamp */
#define SHARD_FILE_ROW_1_HEAD_BYTES 24u       /* of format 1: key, version, last clock */
#define SHARD_FILE_CHUNK_MAX_BYTES (1u << 20) /* of a chunk, but for its head */
#define SHARD_FILE_STATE_MAX_BYTES (UINT64_C(1) << 32)
#define SHARD_FILE_COUNT_MAX \
    (UINT64_C(1) << 53) /* what the manifest's JSON can carry exactly */

/* The shard that wrote a file, its node and its layout. */
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
    uint32_t n_tables;    /* records */
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
    uint32_t payload_bytes; /* of a row: the bytes after its head in memory */
    uint32_t id;            /* the table's number in its shard; the reader counts it */
    uint32_t n_dropped; /* not 0: a record of so many dropped tables, the first has this id */
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

/* Facts of a file that was read or written. */
struct shard_file_facts {
    uint64_t n_bytes;
    uint32_t crc;                     /* as the footer's, but with the footer */
    uint32_t shard;                   /* of the cluster */
    uint64_t n_rows, n_gone, version; /* the shard's at `first` */
    uint64_t last_version;            /* of no row is it greater */
    uint64_t first, through;
    bool is_delta;
};

/* Sizes in a file of this format. */
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

/* Bytes of a row behind its head in memory; 0: unknown optimizer. */
uint32_t shard_file_payload_bytes(const struct table_spec *spec);

/* Encode in format SHARD_FILE_FORMAT; the header of SHARD_FILE_FORMAT_DROP if its format says so. */
void shard_file_encode_header(uint8_t dst[static SHARD_FILE_HEADER_BYTES],
                              const struct shard_file_header *header);
void shard_file_encode_table(uint8_t dst[static SHARD_FILE_TABLE_BYTES],
                             const struct shard_file_table *table);
void shard_file_encode_footer(uint8_t dst[static SHARD_FILE_FOOTER_BYTES],
                              const struct shard_file_footer *footer);

/* Fills in the crc, over the chunk's head and its n_bytes. */
void shard_file_encode_chunk(uint8_t dst[static SHARD_FILE_CHUNK_BYTES],
                             const struct shard_file_chunk *chunk, const uint8_t *bytes);

/* Return the error in these bytes (static storage, or `reason`), or NULL. src: magic and format; else the whole header,
 * record or footer of this format. */
#define SHARD_FILE_FORMAT_AT_BYTES 12u
const char *shard_file_decode_format(const uint8_t src[static SHARD_FILE_FORMAT_AT_BYTES],
                                     uint32_t *ret_format);
const char *shard_file_decode_header(const uint8_t *src, uint32_t format,
                                     struct shard_file_header *ret);
const char *shard_file_decode_table(const uint8_t *src, uint32_t format,
                                    struct shard_file_table *ret, struct err *reason);
const char *shard_file_decode_footer(const uint8_t *src, uint32_t format,
                                     struct shard_file_footer *ret);

/* Decodes the head only; shard_file_chunk_is_whole() checks the crc once the content is read. */
const char *shard_file_decode_chunk(const uint8_t src[static SHARD_FILE_CHUNK_BYTES],
                                    const struct shard_file_header *header,
                                    const struct shard_file_table *tables,
                                    struct shard_file_chunk *ret);
bool shard_file_chunk_is_whole(const uint8_t head[static SHARD_FILE_CHUNK_BYTES],
                               const struct shard_file_chunk *chunk, const uint8_t *bytes);

/* Converts rows of format 1 in place: their stamp has no touches. */
void shard_file_convert_rows_1(uint8_t *rows, uint32_t n_rows, uint32_t payload_bytes);

#endif
