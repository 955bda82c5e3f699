/*
 * Where the trainer's tables are: on servers (store_remote.c, over libps) or inside this
 * process (store_local.c, over server/core: the oracle of lock step, and what a checkpoint is
 * read with). The trainer sees no difference.
 *
 * store_local.c is the one place where worker/ includes server/core and server/store: an arrow
 * down, and none back.
 */
#ifndef WORKER_STORE_H
#define WORKER_STORE_H

#include "worker/client/ps.h"

struct store;

struct store_ops {
    int (*table)(struct store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err);
    int (*table_find)(struct store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err);
    int (*pull_start)(struct store *s, uint64_t clock, const struct ps_pull_section *sections,
                      uint32_t n, struct err *err);
    int (*pull_wait)(struct store *s, struct err *err);
    int (*push)(struct store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err);
    int (*flush)(struct store *s, struct err *err);
    int (*leave)(struct store *s, struct err *err);
    uint64_t (*clock)(const struct store *s);
    void (*stats)(const struct store *s, struct ps_stats *ret);
    /* These rows are wanted next: what is not held of them may be pulled now, and no push that is
     * still to be sent changes it. Its sections stay borrowed until the next pull_wait. May be
     * NULL. What it returns is as of pull_start. */
    int (*ahead)(struct store *s, const struct ps_pull_section *sections, uint32_t n,
                 struct err *err);
    /* For who holds a copy of the tables (store_mirror.c): every push is shown from here on. Returns
     * how many shards there are. May be NULL. */
    uint32_t (*set_tap)(struct store *s, const struct ps_tap *tap);
    void (*close)(struct store *s);
};

/* The head of each implementation's struct. */
struct store {
    const struct store_ops *ops;
};

int store_remote_open(const struct ps_options *options, struct store **ret, struct err *err)
    MUST_CHECK;

/* One shard in this process. checkpoint_dir: data directory (its newest checkpoint) or one
 * checkpoint to start from, several comma-separated for several nodes; NULL: empty. */
int store_local_open(const char *job, const char *checkpoint_dir, struct store **ret,
                     struct err *err) MUST_CHECK;

/* Writes the tables as a checkpoint that psd, eval and predict read. */
int store_local_save(struct store *s, const char *data_dir, struct err *err) MUST_CHECK;

#endif
