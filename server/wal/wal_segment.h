/*
 * A segment: one file of a shard's log, DIR/NUMBER.psl. NUMBER is its first record's number in 20 digits.
 *
 *     header | block | block ...       (wal_block.h)
 *
 *     offset  bytes  field
 *          0      8  magic      "PSDLOG" and a newline, NUL
 *          8      4  format     1
 *         12      4  flags      WAL_SEGMENT_GAP: records just before `first` were dropped
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
 * A segment ends where the next one begins: later records in it do not count. So a writer that abandons a file
 * (a torn tail, a failed sync) writes the doubtful records again, into a new segment.
 */
#ifndef SERVER_WAL_WAL_SEGMENT_H
#define SERVER_WAL_WAL_SEGMENT_H

#include "common/file.h"
#include "common/status.h"

#define WAL_SEGMENT_HEADER_BYTES 80u
#define WAL_PATH_MAX 1024u

enum wal_segment_flag { WAL_SEGMENT_GAP = 1 << 0, WAL_SEGMENT_FLAGS_KNOWN = WAL_SEGMENT_GAP };

/* The owner of a log. */
struct wal_identity {
    uint32_t node, shard, n_shards;
    uint64_t map_id;
};

struct wal_segment {
    uint32_t flags;
    struct wal_identity identity;
    uint64_t first, durable, version, unix_ms;
    uint32_t crc; /* of the header; blocks begin with it */
};

/* Fills in header->crc, too. */
void wal_segment_encode(uint8_t dst[static WAL_SEGMENT_HEADER_BYTES],
                        struct wal_segment *header);

/* Returns the error in these bytes, or NULL. */
const char *wal_segment_decode(const uint8_t src[static WAL_SEGMENT_HEADER_BYTES],
                               struct wal_segment *ret);

/* The owner in a header that may be damaged; and the owner put into such a header. */
void wal_segment_identity(const uint8_t src[static WAL_SEGMENT_HEADER_BYTES],
                          struct wal_identity *ret);
void wal_segment_set_identity(uint8_t dst[static WAL_SEGMENT_HEADER_BYTES],
                              const struct wal_identity *identity);

/* DIR/NUMBER.psl. -ENAMETOOLONG. */
int wal_segment_path(const char *dir, uint64_t first, char ret[static WAL_PATH_MAX],
                     struct err *err) MUST_CHECK;

/* The numbers in the names of the existing segments, ascending. An absent directory has none; other names are
 * skipped. */
struct wal_segments {
    uint64_t *firsts; /* owned: the caller's to free, also on failure */
    size_t n;
};

int wal_segment_list(const struct file_ops *files, const char *dir, struct wal_segments *ret,
                     struct err *err) MUST_CHECK;

/* --- the directory of a shard's log; all return statuses of the file system, with a sentence --- */

/* Makes the directory; its parent is there. */
int wal_segment_make_dir(const struct file_ops *files, const char *dir, struct err *err)
    MUST_CHECK;

/* Syncs the directory's own name and the names of its segments. */
int wal_segment_sync_names(const struct file_ops *files, const char *dir, struct err *err)
    MUST_CHECK;

/* Syncs the segments that may hold records above `durable`, up to `last`, also closed ones. */
int wal_segment_sync(const struct file_ops *files, const char *dir, uint64_t durable,
                     uint64_t last, struct err *err) MUST_CHECK;

/* Renames the segments that begin with record `first` or later to NAME.unread, the last one first, so an
 * interruption leaves no hole. */
int wal_segment_archive(const struct file_ops *files, const char *dir, uint64_t first,
                        struct err *err) MUST_CHECK;

/* Removes the segments with only records below `number`, in ascending order, so an interruption leaves no hole.
 * Then removes archived segments that begin below it. */
int wal_segment_truncate(const struct file_ops *files, const char *dir, uint64_t number,
                         struct err *err) MUST_CHECK;

#endif
