/*
 * Rows of one layout's shard -> the shards of another. Roster and held pushes do not travel: their
 * numbers are of the layout in which they were given.
 */
#ifndef SERVER_DURABLE_DEAL_H
#define SERVER_DURABLE_DEAL_H

#include "server/core/shard.h"

/* Tables, their step counts, and those rows of `from` whose keys route to `to`. `from` is only read,
 * so several threads may deal from it at a time. progress(arg) now and then; NULL is fine. PS_ESPEC,
 * PS_EBUDGET, -ENOMEM, with a sentence: `to` has some of the rows. */
int deal_rows(struct shard *from, struct shard *to, void (*progress)(void *arg), void *arg,
              struct err *err) ON_SHARD MUST_CHECK;

/* The same of one table of `from`. */
int deal_table(struct shard *from, uint32_t from_id, struct shard *to,
               void (*progress)(void *arg), void *arg, struct err *err) ON_SHARD MUST_CHECK;

#endif
