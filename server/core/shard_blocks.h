/*
 * A dense table is all there or not at all: before a push takes effect, every block that it brings has a
 * row, or the push is refused whole. (A new row of a sparse table that finds no place is left out and
 * counted: shard_grow.h. A layer that lacks blocks would never train, and nobody would know.)
 */
#ifndef SERVER_CORE_SHARD_BLOCKS_H
#define SERVER_CORE_SHARD_BLOCKS_H

#include "server/core/shard_state.h"

/* Rows, as they begin, for the keys of the push's dense tables that have none; where it waits for its
 * clock, room for them. PS_EBUDGET, -ENOMEM and a sentence: none was made. When a journal is replayed nothing
 * is done: what was decided then is in it (shard_again.h). */
int shard_blocks_make(struct shard *s, struct shard_run *run) MUST_CHECK;

#endif
