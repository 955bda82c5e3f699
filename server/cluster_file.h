/*
 * The cluster as a standby's primary has named it. A psd without --cluster is the only node of a cluster that is named
 * after its own address. A standby goes on as the node that its primary was, under that name: DATA_DIR/CLUSTER keeps
 * it, so that clients know the node again after every start.
 *
 *     psd cluster, format 1
 *     map 0123456789abcdef
 *     shards 4                     of each node
 *     node 0                       which of them this is
 *     at 10.0.0.1:7070             a line for each node
 *     crc32c 01234567              of all bytes before this line
 */
#ifndef SERVER_CLUSTER_FILE_H
#define SERVER_CLUSTER_FILE_H

#include "common/file.h"
#include "proto/message.h"

/* Fills n_nodes, node, shards_per_node, map_id and nodes. n_nodes 0: there is no such file. PS_ECORRUPT with a
 * sentence; statuses of the file system. */
int cluster_file_read(const struct file_ops *files, const char *data_dir,
                      struct hello_reply *ret, struct err *err) MUST_CHECK;

/* Replaces the file in one step; it is on the disk when this returns 0. */
int cluster_file_write(const struct file_ops *files, const char *data_dir,
                       const struct hello_reply *map, struct err *err) MUST_CHECK;

/* 0 also if there is none. */
int cluster_file_remove(const struct file_ops *files, const char *data_dir, struct err *err)
    MUST_CHECK;

#endif
