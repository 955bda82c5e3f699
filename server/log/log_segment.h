/*
 * One file of a shard's log: DIR/NUMBER.psl, NUMBER being that of its first record in 20 digits.
 *
 *     header | block | block ...       (log_block.h)
 *
 *     offset  bytes  field
 *          0      8  magic      "PSDLOG" and a newline, NUL
 *          8      4  format     1
 *         12      4  flags      LOG_SEGMENT_GAP: records just before `first` were dropped
 *         16      4  node       whose log it is:
 *         20      4  shard      the cluster's number of the shard,
 *         24      4  n_shards   of so many
 *         28      4  zero
 *         32      8  map_id     of the slot map
 *         40      8  first      number of the first record, as in the name
 *         48      8  durable    all records up to this one are on the disk
 *         56      8  version    the shard's before the first record
 *         64      8  unix_ms    when it was begun
 *         72      4  zero
 *         76      4  crc32c     of bytes 0..75
 *
 * A segment ends where the next one begins: what it holds beyond that does not count. So a writer
 * that gives up a file (a torn tail, a sync that failed) writes again, in a new one, what the old
 * one may not hold.
 */
#ifndef SERVER_LOG_LOG_SEGMENT_H
#define SERVER_LOG_LOG_SEGMENT_H

#include "common/file.h"
#include "common/status.h"

#define LOG_SEGMENT_HEADER_BYTES 80u
#define LOG_PATH_MAX 1024u

enum log_segment_flag { LOG_SEGMENT_GAP = 1 << 0, LOG_SEGMENT_FLAGS_KNOWN = LOG_SEGMENT_GAP };

/* Whose log. */
struct log_identity {
    uint32_t node, shard, n_shards;
    uint64_t map_id;
};

struct log_segment {
    uint32_t flags;
    struct log_identity identity;
    uint64_t first, durable, version, unix_ms;
    uint32_t crc; /* of the header; blocks begin with it */
};

/* Fills in header->crc, too. */
void log_segment_encode(uint8_t dst[static LOG_SEGMENT_HEADER_BYTES],
                        struct log_segment *header);

/* What is wrong with these bytes, or NULL. */
const char *log_segment_decode(const uint8_t src[static LOG_SEGMENT_HEADER_BYTES],
                               struct log_segment *ret);

/* DIR/NUMBER.psl. -ENAMETOOLONG. */
int log_segment_path(const char *dir, uint64_t first, char ret[static LOG_PATH_MAX],
                     struct err *err) MUST_CHECK;

/* The numbers in the names of the segments that are there, ascending. An absent directory has
 * none; other names are left out. */
struct log_segments {
    uint64_t *firsts; /* owned: the caller's to free, also on failure */
    size_t n;
};

int log_segment_list(const struct file_ops *files, const char *dir, struct log_segments *ret,
                     struct err *err) MUST_CHECK;

#endif
