/*
 * The data that a start begins from: the sources that the options name (at, restore, no-restore), or the node's own
 * data directory.
 *
 * Options are applied once. A restart by the service manager repeats them; it continues the epoch that began with them
 * (server/recovery/timeline.h), because the later data would be lost otherwise. A start without options clears them:
 * when given again, they apply again.
 */
#ifndef SERVER_START_SOURCE_H
#define SERVER_START_SOURCE_H

#include "server/recovery/restore_source.h"
#include "server/settings.h"

struct start_source {
    struct restore_source *sources; /* owned: none is with nothing */
    uint32_t n_sources;
    bool is_own;                /* the source is the node's data directory */
    bool was_done;              /* the options: by the start that began the newest epoch */
    struct recover_shard_at at; /* as the options say, unless they were done */
    char *options;              /* owned, as text: timeline.h */
};

struct start_source_config {
    const struct file_ops *files;    /* borrowed */
    const struct settings *settings; /* borrowed until start_source_deinit() */
    uint32_t node, n_nodes;
    void (*report)(void *arg, const char *sentence);
};

/* `ret`: zeroed; call start_source_deinit() also on failure. Statuses of restore_source_open() and
 * restore_source_check_set(). PS_ECLUSTER: the data directory is another node's. PS_ECORRUPT: it is unknown whether the
 * options were applied. */
int start_source_find(struct start_source *ret, const struct start_source_config *config,
                      struct err *err) MUST_CHECK;

/* The (first) checkpoint or data directory; "" for none. */
void start_source_name(const struct start_source *o, char ret[static CHECKPOINT_PATH_MAX]);

/* A zeroed one is fine. */
/* The data directory's number of shards, if --shards is not set and the directory has data that can be opened. */
void start_source_choose_shards(struct settings *settings, const struct file_ops *files);

void start_source_deinit(struct start_source *o);

#endif
