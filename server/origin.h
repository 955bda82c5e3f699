/*
 * What a start begins from: what the settings tell (at, restore, no-restore), or where the node's own data directory ends.
 *
 * What is told is done once. A restart that nobody types tells the same again; it goes on where the epoch ended that began
 * with it (server/durable/beginning.h), as all that came since would be lost otherwise. A start that is told nothing
 * forgets it: told again, it counts again.
 */
#ifndef SERVER_ORIGIN_H
#define SERVER_ORIGIN_H

#include "server/durable/source.h"
#include "server/settings.h"

struct origin {
    struct source *sources; /* owned: none is with nothing */
    uint32_t n_sources;
    bool is_own;          /* the source is the node's data directory */
    bool was_done;        /* what is told: by the start that began the epoch that is there */
    struct rebuild_at at; /* as it is told, unless that was done */
    char *told;           /* owned: beginning.h */
};

struct origin_config {
    const struct file_ops *files;    /* borrowed */
    const struct settings *settings; /* borrowed until origin_deinit() */
    uint32_t n_nodes;
    void (*report)(void *arg, const char *sentence);
};

/* `ret`: zeroed; origin_deinit() it, also on failure. Statuses as source_open(), source_check_set(); PS_ECLUSTER: the data
 * directory is another node's; PS_ECORRUPT: it cannot be known whether what is told was done. */
int origin_look(struct origin *ret, const struct origin_config *config, struct err *err)
    MUST_CHECK;

/* The (first) checkpoint or data directory; "" for none. */
void origin_name(const struct origin *o, char ret[static CHECKPOINT_PATH_MAX]);

/* A zeroed one is fine. */
void origin_deinit(struct origin *o);

#endif
