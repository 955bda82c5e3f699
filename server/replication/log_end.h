/* The last records of a node's logs, without the shards: what a standby says that it has, before it loads it. A start
 * may find a few less (rows whose push is not there). */
#ifndef SERVER_REPLICATION_LOG_END_H
#define SERVER_REPLICATION_LOG_END_H

#include "common/file.h"
#include "common/status.h"

/* *ret_epoch: the newest timeline; ret_last: for each shard the last record of it that can be read, or that its newest
 * checkpoint has; 0: none. Statuses of the file system; -ENOMEM. */
int log_end_read(const struct file_ops *files, const char *data_dir, uint32_t n_shards,
                 uint64_t *ret_epoch, uint64_t *ret_last, struct err *err) MUST_CHECK;

#endif
