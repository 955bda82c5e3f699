/*
 * All checkpoints of a data directory by their manifests, also those that were set aside. For who asks what there was,
 * and not what can be loaded: the files are not looked at.
 */
#ifndef SERVER_DURABLE_MANIFESTS_H
#define SERVER_DURABLE_MANIFESTS_H

#include <stdbool.h>

#include "server/store/manifest.h"

struct manifests_item {
    uint64_t number;
    bool is_aside;
    const struct manifest *manifest; /* borrowed for the call; NULL: it is damaged */
};

/* One that was not finished is left out. Descending; those that were set aside come last. -ENOMEM; what files answer
 * about this process (no permission). */
int manifests_each(const struct file_ops *files, const char *data_dir,
                   void (*visit)(void *arg, const struct manifests_item *item), void *arg,
                   struct err *err) MUST_CHECK;

#endif
