/*
 * Checks one checkpoint byte for byte. Its files must match its manifest. Every row and key must be readable and
 * belong to the shard of its file. Jobs and held pushes must be restorable.
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
