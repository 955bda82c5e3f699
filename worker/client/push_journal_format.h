/*
 * The bytes of a worker's push journal (push_journal.h). Little-endian:
 *
 *     offset  bytes  header of a segment
 *     0       8      "psdpush\n"
 *     8       4      version, 1
 *     12      4      rank of the worker
 *     16      8      incarnation
 *     24      8      number of the first push in it
 *     32      128    name of the job, padded with NUL
 *     160     4      0
 *     164     4      crc32c of all before
 *
 * Pushes follow, each at the next multiple of 64 bytes; 64 zeros follow the last one. Bytes after those
 * are of an earlier segment in the same file. A push's head is written last and is one cache line. So a push is
 * whole or absent, whenever the process is killed.
 *
 *     offset  bytes  a push: head
 *     0       4      "PUSH"
 *     4       4      n_samples
 *     8       8      bytes of the whole record, this head included
 *     16      8      its number
 *     24      8      clock
 *     32      8      id of the cluster's map
 *     40      4      n_shards
 *     44      4      n_tables that its sections name
 *     48      4      bytes of the note (a resume point)
 *     52      4      1: it ends the step
 *     56      4      0
 *     60      4      crc32c of the record without these 4 bytes
 *
 *     then   note | names of tables, 128 bytes each, padded with NUL
 *            for each shard: n_versions u64, n_sections u32, 0 u32, bytes of its rows u64
 *                each section: table (place in the names) u32, op u8, codec u8, 0 u16, k u32, n_keys u32,
 *                              then where keys begin in the rows, their bytes, where values
 *                              begin, their bytes: u64 each
 *            for each shard: the bytes of its rows
 *
 * Tables have names here, as their numbers are those of one process.
 */
#ifndef WORKER_CLIENT_PUSH_JOURNAL_FORMAT_H
#define WORKER_CLIENT_PUSH_JOURNAL_FORMAT_H

#include "common/bytes.h"
#include "common/status.h"
#include "worker/client/request.h"

#define PUSH_JOURNAL_HEADER_BYTES 168u
#define PUSH_JOURNAL_FIRST_PUSH 192u /* where it begins */
#define PUSH_JOURNAL_PUSH_HEAD_BYTES 64u
#define PUSH_JOURNAL_NOTE_MAX 256u
#define PUSH_JOURNAL_SHARDS_MAX 65536u

struct push_journal_header {
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t rank;
    uint64_t incarnation, first_seq;
};

/* One push to all shards, as it is written and as it is read. */
struct push_journal_push {
    struct push_journal_push *next; /* of those found */
    uint64_t seq, map_id;
    uint32_t n_shards, n_tables, note_bytes;
    const char *const *names;                 /* n_tables, to write: borrowed */
    char (*found_names)[TABLE_SPEC_NAME_MAX]; /* n_tables, once read: owned */
    /* n_shards, clock, n_samples, tick and n_versions set; table_id: place in the names. Written: borrowed; read:
     * owned. */
    struct request **requests;
    uint8_t note[PUSH_JOURNAL_NOTE_MAX];
};

void push_journal_format_header(const struct push_journal_header *h,
                                uint8_t ret[PUSH_JOURNAL_HEADER_BYTES]);

/* PS_ECORRUPT: these bytes are no header, or damaged. */
int push_journal_format_read_header(const uint8_t bytes[PUSH_JOURNAL_HEADER_BYTES],
                                    struct push_journal_header *ret) MUST_CHECK;

/* Appends all of the record but the shards' rows, which follow it in the file as they are in the
 * requests. -ENOMEM. */
int push_journal_format_push(const struct push_journal_push *p, struct bytes *out) MUST_CHECK;

/* The offset of the next push, after a record that ends at `end`. */
static inline uint64_t push_journal_format_next(uint64_t end)
{
    return (end + PUSH_JOURNAL_PUSH_HEAD_BYTES - 1) / PUSH_JOURNAL_PUSH_HEAD_BYTES *
           PUSH_JOURNAL_PUSH_HEAD_BYTES;
}

/* The first record of n_bytes. *ret_bytes: its length. -ENOENT: there is none, 64 zeros or fewer bytes;
 * PS_ECORRUPT; -ENOMEM. */
int push_journal_format_read_push(const uint8_t *bytes, size_t n_bytes,
                                  struct push_journal_push **ret, size_t *ret_bytes) MUST_CHECK;

/* One that was read. NULL is fine. */
void push_journal_format_free_push(struct push_journal_push *p);

#endif
