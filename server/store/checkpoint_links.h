/* What checkpoint_commit.c and checkpoint_find.c both ask of a checkpoint's directory. */
#ifndef SERVER_STORE_CHECKPOINT_LINKS_H
#define SERVER_STORE_CHECKPOINT_LINKS_H

#include "server/store/checkpoint.h"

/* Has it no manifest at all? Then it is the leftover of a crash or of a failure, with a
 * bad one it is a loss. */
bool checkpoint_is_unfinished(const struct file_ops *files, const char *dir);

/* The manifests of a restore point: its own, and those of what it is a delta to. No file is opened. On
 * failure *ret is empty. */
int checkpoint_read_links(const struct file_ops *files, const char *dir, struct checkpoint *ret,
                          struct err *err) MUST_CHECK;

#endif
