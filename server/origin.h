/*
 * What a node is told to begin from: the directories of --restore, or its own data directory. Looks at manifests and heads
 * alone.
 */
#ifndef SERVER_ORIGIN_H
#define SERVER_ORIGIN_H

#include "server/durable/source.h"
#include "server/settings.h"

struct origin {
    struct source *sources; /* owned */
    uint32_t n_sources;     /* 0: nothing, or --no-restore */
};

/* --at, as it was given. */
struct rebuild_at origin_at(const struct settings *s);

/* What is damaged is told to `report`. A node of n_nodes, whose own data directory is of another node: PS_ECLUSTER. What
 * source_open() and source_check_set() answer. */
int origin_open(struct origin *o, const struct file_ops *files, const struct settings *s,
                uint32_t n_nodes, void (*report)(void *arg, const char *sentence),
                struct err *err) MUST_CHECK;

/* Also after a failure; a zeroed one is fine. */
void origin_close(struct origin *o);

/* The (first) checkpoint or data directory; "" for none. */
void origin_name(const struct origin *o, char ret[static CHECKPOINT_PATH_MAX]);

#endif
