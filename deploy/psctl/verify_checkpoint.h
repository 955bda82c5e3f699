/*
 * One checkpoint, byte for byte: that its files are what its manifest says, that every row and key can be read
 * and belongs to the shard whose file it is in, and that jobs and held pushes can be made again.
 */
#ifndef DEPLOY_PSCTL_VERIFY_CHECKPOINT_H
#define DEPLOY_PSCTL_VERIFY_CHECKPOINT_H

#include "server/checkpoint/checkpoint.h"

/* Its own files, or also those that they are deltas to. */
enum verify_checkpoint_extent { VERIFY_OWN_FILES, VERIFY_CHAIN };

/* PS_ECORRUPT, -ENOENT ... with a sentence that names the file and, where there is one, the byte. */
int verify_checkpoint_all(const struct file_ops *files, const struct checkpoint *c,
                          enum verify_checkpoint_extent extent, struct err *err) MUST_CHECK;

#endif
