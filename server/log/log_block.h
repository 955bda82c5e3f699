/*
 * Records that go to the disk with one write, under one header: a group.
 *
 *     offset  bytes  field
 *          0      4  magic          "BLK" and a newline
 *          4      4  flags          LOG_BLOCK_ZSTD: the records are one zstd frame
 *          8      8  first          number of the first record
 *         16      8  durable        all records up to this one were on the disk when this block
 *                                   was written
 *         24      4  n_records      0: nothing follows, the log was closed (then first is the next)
 *         28      4  raw_bytes      of the records, before compression
 *         32      4  stored_bytes   of what follows, without padding
 *         36      4  zero
 *         40      4  crc32c         of what is stored
 *         44      4  crc32c         of bytes 0..43, begun with the segment's crc
 *         48      -  records, then zeros up to a multiple of 8
 *
 * The segment's crc in it: a block's bytes that stand in another place (a push may hold anything)
 * are no block there.
 *
 * In memory a block is made by the shard's thread (log_queue.h), written by the writer
 * (log_writer.h), kept until its records are safe, and given back.
 */
#ifndef SERVER_LOG_LOG_BLOCK_H
#define SERVER_LOG_LOG_BLOCK_H

#include "common/buf.h"
#include "server/log/log_record.h"

#define LOG_BLOCK_HEADER_BYTES 48u

enum log_block_flag { LOG_BLOCK_ZSTD = 1 << 0, LOG_BLOCK_FLAGS_KNOWN = LOG_BLOCK_ZSTD };

struct log_block {
    struct log_block *next;
    uint64_t first, last;      /* records; last < first: none */
    uint64_t version;          /* the shard's, behind the last one; 0: all are of rows */
    uint64_t since_ms;         /* when the first one came */
    bool gap;                  /* records before the first one were dropped */
    size_t n_bytes, cap_bytes; /* of records */
    /* Room for the header, then the records. */
    _Alignas(8) uint8_t bytes[];
};

struct log_block_head {
    uint32_t flags, n_records, raw_bytes, stored_bytes, stored_crc;
    uint64_t first, durable;
};

static inline uint8_t *log_block_records(struct log_block *block)
{
    return block->bytes + LOG_BLOCK_HEADER_BYTES;
}

static inline size_t log_block_padded(size_t n_bytes)
{
    return (n_bytes + 7) & ~(size_t)7;
}

/* NULL without memory. */
struct log_block *log_block_new(size_t cap_bytes) MUST_CHECK;
/* NULL is fine; the whole list. */
void log_block_free(struct log_block *first);

/* Empties it. */
void log_block_clear(struct log_block *block);

/* Adds the record, for which there is room. */
void log_block_add(struct log_block *block, const struct log_record *record, size_t n_bytes);

/* What a writer compresses with: made when it is first needed, and kept from one block to the next.
 * Zeroed: nothing yet. */
struct log_block_zstd {
    struct ZSTD_CCtx_s *context; /* owned */
    struct buf bytes;
};

void log_block_zstd_deinit(struct log_block_zstd *z);

/*
 * The bytes to write, header and padding included: in the block itself, or, where zstd makes them
 * at least 1/8 less and `zstd` is given, in its bytes. May be called again, for another
 * segment. Without memory for zstd the records go as they are.
 */
void log_block_seal(struct log_block *block, uint32_t segment_crc, uint64_t durable,
                    struct log_block_zstd *zstd, const uint8_t **ret_bytes,
                    size_t *ret_n_bytes);

/* The block that says that the log was closed behind record `last`. */
void log_block_seal_end(uint8_t dst[static LOG_BLOCK_HEADER_BYTES], uint32_t segment_crc,
                        uint64_t last, uint64_t durable);

/* What is wrong with these bytes, or NULL. */
const char *log_block_decode(const uint8_t src[static LOG_BLOCK_HEADER_BYTES],
                             uint32_t segment_crc, struct log_block_head *ret);

/* The records (raw_bytes, aligned to 8) of what is stored: in `stored`, which is aligned, or in
 * *scratch. PS_ECORRUPT, -ENOMEM. */
int log_block_open(const struct log_block_head *head, const uint8_t *stored,
                   struct buf *scratch, const uint8_t **ret_records) MUST_CHECK;

#endif
