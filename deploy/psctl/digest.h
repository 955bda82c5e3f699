/*
 * A table's content as one number, the same in whatever layout and order its rows are: the sum (mod 2^64)
 * over all rows of XXH3_64bits(key u64, stamp u64, payload), little-endian, the stamp without flags.
 */
#ifndef DEPLOY_PSCTL_DIGEST_H
#define DEPLOY_PSCTL_DIGEST_H

#include "server/core/shard.h"

uint64_t digest_table(const struct shard_table *table);

#endif
