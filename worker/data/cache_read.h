/*
 * Reads the cache of one file, block by block; a row is handed out only when its block's
 * checksum is right and the block is the one that has to come.
 */
#ifndef WORKER_DATA_CACHE_READ_H
#define WORKER_DATA_CACHE_READ_H

#include "worker/data/cache_key.h"
#include "worker/data/record.h"

struct cache_read;

/* -ENOENT, without a sentence, when there is no cache; -ESTALE when it is another file's or
 * version's; PS_ECORRUPT when its header is damaged. key is copied. */
int cache_read_open(const struct cache_key *key, struct cache_read **ret, struct err *err)
    MUST_CHECK;

/* The next record, borrowed until the next call; NULL behind the last. PS_ECORRUPT for a block
 * that is damaged or not whole, -ENOMEM, a negative errno: no row of that block was handed
 * out. */
int cache_read_next(struct cache_read *c, const struct record **ret, struct err *err)
    MUST_CHECK;

/* Of the file's text, behind the last row; once cache_read_next() found the end. */
uint64_t cache_read_text_bytes(const struct cache_read *c);

void cache_read_close(struct cache_read *c);

#endif
