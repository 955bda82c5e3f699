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

/* checkpoint_open() where psd may be at work. *ret_unfinished: it failed for the want of a manifest, and there is none yet,
 * or no more; one that came while it was looked for is taken. */
int checkpoint_open_settled(const struct file_ops *files, const char *dir,
                            struct checkpoint *ret, bool *ret_unfinished, struct err *err)
    MUST_CHECK;

#endif
