/*
 * The cache of one file's parsed rows: its name, its bytes, and how it is written and read.
 *
 * The file's path and everything that decides what a line becomes (columns, transforms, the moments of
 * standardisation, with label or without) decide the cache's name, so jobs that read one file differently
 * use different caches. Size and time of the file stand inside: a cache with others is stale, and is
 * written again under the same name.
 *
 * Bytes, little-endian: a header, then blocks of records (parsed_row.h), the last of them empty:
 *
 *     header, 64 bytes                            head of a block, 32 bytes
 *     0   "psdrows", 0                            0   u32 "rows"; "end!" for the last block
 *     8   u32 version, 1                          4   u32 rows
 *     12  u32 crc32c of the header, this as 0     8   u32 bytes of records, at most 64 MiB
 *     16  u64 fingerprint                         12  u32 crc32c of head (this as 0) and records
 *     24  u64 bytes of the file                   16  u64 rows before the block
 *     32  u64 its time of change, ns              24  u64 bytes of unpacked text before the row after
 *     40  u32 n_floats, u32 n_fields                  the block
 *     48  0
 */
#ifndef WORKER_DATA_ROW_CACHE_FILE_H
#define WORKER_DATA_ROW_CACHE_FILE_H

#include "common/bytes.h"
#include "common/file.h"
#include "common/status.h"
#include "worker/data/parsed_row.h"
#include "worker/data/schema.h"

#define ROW_CACHE_FILE_PATH_MAX 1024u
#define ROW_CACHE_FILE_HEADER_BYTES 64u

/* The identity of a file and of its parser. */
struct row_cache_file_key {
    char path[ROW_CACHE_FILE_PATH_MAX]; /* of the cache */
    const struct file_ops *files;       /* borrowed: where caches are */
    uint64_t fingerprint;               /* of the file's path and the plan */
    uint64_t size_bytes, changed_ns;    /* of the file */
    uint32_t n_floats,
        n_fields; /* n_floats: numerics, and labels behind the first (parsed_row.h) */
};

/* plan: the schema's own, or the one for files without a label. A negative errno, with a sentence, when
 * the file has no status or the path is too long. */
int row_cache_file_key_init(struct row_cache_file_key *key, const char *dir,
                            const struct file_ops *files, const char *file,
                            const struct schema *schema, const struct line_parser_plan *plan,
                            struct err *err) MUST_CHECK;

/* The header of a cache with this key. */
void row_cache_file_header(const struct row_cache_file_key *key,
                           uint8_t at[ROW_CACHE_FILE_HEADER_BYTES]);

/* ---- reading: block by block; only rows of sound blocks, in order ---- */

struct row_cache_file_reader;

/* -ENOENT, without a sentence, when there is no cache; -ESTALE when the file has changed since;
 * PS_ECORRUPT when its header is not of this version or damaged. key is copied. */
int row_cache_file_open(const struct row_cache_file_key *key,
                        struct row_cache_file_reader **ret, struct err *err) MUST_CHECK;

/* The next record, borrowed until the next call; NULL after the last. PS_ECORRUPT for a block that is
 * damaged or not whole, -ENOMEM, a negative errno: no row of that block was returned. */
int row_cache_file_next(struct row_cache_file_reader *c, const struct parsed_row **ret,
                        struct err *err) MUST_CHECK;

/* Bytes of the file's text after the last row; valid once row_cache_file_next() found the end. */
uint64_t row_cache_file_text_bytes(const struct row_cache_file_reader *c);

void row_cache_file_close(struct row_cache_file_reader *c);

/* ---- writing: under a temporary name, renamed when complete, so that any number of processes may write
 * the same cache: the last one stays ---- */

struct row_cache_file_writer;

/* key is copied. Makes the folder, and removes temporary files of writers that are dead. */
int row_cache_file_create(const struct row_cache_file_key *key, const char *dir,
                          struct row_cache_file_writer **ret, struct err *err) MUST_CHECK;

/* A record: appended to row_cache_file_space() (parsed_row.h), then announced with row_cache_file_row_added(). */
struct bytes *row_cache_file_space(struct row_cache_file_writer *w);
int row_cache_file_row_added(struct row_cache_file_writer *w, uint64_t text_bytes,
                             struct err *err) MUST_CHECK;

/* All rows are written: the file's text has so many bytes. Frees w in any case; a failure leaves no file.
 * -ESTALE when `file` is no longer the one of the key. */
int row_cache_file_commit(struct row_cache_file_writer *w, uint64_t text_bytes,
                          const char *file, struct err *err) MUST_CHECK;

/* Removes the temporary file; NULL is fine. */
void row_cache_file_abort(struct row_cache_file_writer *w);

#endif
