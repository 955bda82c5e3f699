/*
 * What the cache of one file's parsed rows is for, and where it stands. cache_write.h makes it,
 * cache_read.h reads it; the bytes are described in README.md.
 *
 * The file's name and all that decides what a line becomes (columns, transforms, the moments of
 * standardisation, labelled or not) decide the cache's name, so jobs that read the same file
 * otherwise do not meet. Size and time of the file stand inside: a cache that does not have them
 * is stale, and is written anew under the same name.
 */
#ifndef WORKER_DATA_CACHE_KEY_H
#define WORKER_DATA_CACHE_KEY_H

#include "common/file.h"
#include "common/status.h"
#include "worker/data/schema.h"

#define CACHE_KEY_PATH_MAX 1024u
#define CACHE_KEY_VERSION 1u
#define CACHE_KEY_HEADER_BYTES 64u
#define CACHE_KEY_BLOCK_BYTES 32u /* of a block's head */

struct cache_key {
    char path[CACHE_KEY_PATH_MAX];   /* of the cache */
    const struct file_ops *files;    /* borrowed: where caches are */
    uint64_t fingerprint;            /* of the file's name and the plan */
    uint64_t size_bytes, changed_ns; /* of the file */
    uint32_t n_numeric, n_fields;
};

/* Of a block's head; see README.md. */
struct cache_key_block {
    uint32_t magic, n_rows, n_bytes, crc;
    uint64_t first_row, text_bytes;
};

#define CACHE_KEY_ROWS UINT32_C(0x73776f72) /* "rows" */
#define CACHE_KEY_END UINT32_C(0x21646e65)  /* "end!" */

/* plan: the schema's own, or the one for files without a label. A negative errno, with a sentence, when the file cannot be looked at or the path is too
 * long. */
int cache_key_init(struct cache_key *key, const char *dir, const struct file_ops *files,
                   const char *file, const struct schema *schema, const struct row_plan *plan,
                   struct err *err) MUST_CHECK;

/* Size and time of the file are still what the key says. */
bool cache_key_holds(const struct cache_key *key, const char *file);

/* The header of a cache that belongs to the key; what is at `at` is the same but for size and
 * time. */
void cache_key_header(const struct cache_key *key, uint8_t at[CACHE_KEY_HEADER_BYTES]);

/* crc-32c of a block: its head, crc taken as 0, and its bytes. */
uint32_t cache_key_crc(const struct cache_key_block *head, const void *bytes);

#endif
