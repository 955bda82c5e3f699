/*
 * Writes the cache of one file, as a pass reads it: under a name of its own, which becomes the
 * cache's once all is there. So any number of processes may write the same cache: each writes a
 * whole one, and the last stays.
 */
#ifndef WORKER_DATA_CACHE_WRITE_H
#define WORKER_DATA_CACHE_WRITE_H

#include "common/buf.h"
#include "worker/data/cache_key.h"

struct cache_write;

/* key is copied. Makes the folder, and removes what writers that are dead left of this cache. */
int cache_write_open(const struct cache_key *key, const char *dir, struct cache_write **ret,
                     struct err *err) MUST_CHECK;

/* The records of the file, one after another: appended to this (record.h), then told. */
struct buf *cache_write_room(struct cache_write *w);
int cache_write_told(struct cache_write *w, uint64_t text_bytes, struct err *err) MUST_CHECK;

/* All rows are there: the file's text has so many bytes. Frees `w` in any case, and on failure
 * leaves no trace. `file` must still be what it was when the key was made. */
int cache_write_finish(struct cache_write *w, uint64_t text_bytes, const char *file,
                       struct err *err) MUST_CHECK;

/* Gives up and leaves no trace; NULL is fine. */
void cache_write_abandon(struct cache_write *w);

#endif
