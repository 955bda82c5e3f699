/*
 * A block: records that are written with one write, under one header (group commit).
 *
 *     offset  bytes  field
 *          0      4  magic          "BLK" and a newline
 *          4      4  flags          WAL_BLOCK_ZSTD: the records are one zstd frame
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
 * The crc begins with the segment's crc, so a copy of a block elsewhere (a push may hold any bytes) is not
 * taken for a block.
 *
 * In memory the shard's thread fills a block (wal_queue.h), and the writer (wal_writer.h) writes it, keeps it
 * until its records are durable, and returns it.
 */
#ifndef SERVER_WAL_WAL_BLOCK_H
#define SERVER_WAL_WAL_BLOCK_H

#include "common/bytes.h"
#include "server/wal/wal_record.h"

#define WAL_BLOCK_HEADER_BYTES 48u

enum wal_block_flag { WAL_BLOCK_ZSTD = 1 << 0, WAL_BLOCK_FLAGS_KNOWN = WAL_BLOCK_ZSTD };

struct wal_block {
    struct wal_block *next;
    uint64_t first, last;      /* records; last < first: none */
    uint64_t version;          /* the shard's, behind the last one; 0: all are of rows */
    uint64_t since_ms;         /* when the first one came */
    bool gap;                  /* records before the first one were dropped */
    bool begins_segment;       /* wal_queue_begin_segment() */
    size_t n_bytes, cap_bytes; /* of records */
    /* Space for the header, then the records. */
    _Alignas(8) uint8_t bytes[];
};

struct wal_block_head {
    uint32_t flags, n_records, raw_bytes, stored_bytes, stored_crc;
    uint64_t first, durable;
};

static inline uint8_t *wal_block_records(struct wal_block *block)
{
    return block->bytes + WAL_BLOCK_HEADER_BYTES;
}

static inline size_t wal_block_padded(size_t n_bytes)
{
    return (n_bytes + 7) & ~(size_t)7;
}

/* NULL without memory. */
struct wal_block *wal_block_new(size_t cap_bytes) MUST_CHECK;
/* NULL is fine; the whole list. */
void wal_block_free(struct wal_block *first);

/* Empties it. */
void wal_block_clear(struct wal_block *block);

/* Compression state of a writer: created on first use and kept between blocks. Zeroed: none yet. */
struct wal_block_zstd {
    struct ZSTD_CCtx_s *context; /* owned */
    struct bytes bytes;
};

void wal_block_zstd_deinit(struct wal_block_zstd *z);

/*
 * Returns the bytes to write, header and padding included: in the block itself, or in zstd->bytes if `zstd` is
 * given and saves at least 1/8. May be called again, for another segment. Without memory for zstd the records
 * stay uncompressed.
 */
void wal_block_seal(struct wal_block *block, uint32_t segment_crc, uint64_t durable,
                    struct wal_block_zstd *zstd, const uint8_t **ret_bytes,
                    size_t *ret_n_bytes);

/* Encodes the block that marks the log as closed behind record `last`. */
void wal_block_seal_end(uint8_t dst[static WAL_BLOCK_HEADER_BYTES], uint32_t segment_crc,
                        uint64_t last, uint64_t durable);

/* Returns the error in these bytes, or NULL. */
const char *wal_block_decode(const uint8_t src[static WAL_BLOCK_HEADER_BYTES],
                             uint32_t segment_crc, struct wal_block_head *ret);

/* Returns the records (raw_bytes, aligned to 8) of a stored block: in `stored`, which is aligned, or in
 * *scratch. PS_ECORRUPT, -ENOMEM. */
int wal_block_open(const struct wal_block_head *head, const uint8_t *stored,
                   struct bytes *scratch, const uint8_t **ret_records) MUST_CHECK;

#endif
