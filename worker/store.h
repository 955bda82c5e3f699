/*
 * Where the trainer's tables are: on servers (store_remote.c, over libps) or inside this
 * process (store_local.c, over server/core: the oracle of lock step, and what a checkpoint is
 * read with). The trainer sees no difference.
 *
 * store_local.c and mirror/ (behind store_mirror.c and store_reuse.c) are where worker/ includes
 * server/core, store_local.c alone where it includes server/store: arrows down, and none back.
 */
#ifndef WORKER_STORE_H
#define WORKER_STORE_H

#include "worker/client/ps.h"

struct store;

/*
 * Threads: as in ps.h. Where `overlaps` is false, calls must not overlap, whoever makes them:
 * the next one begins after the last one has returned.
 *
 * PS_EFENCED comes from every call until resume() (ps_resume()).
 */
struct store_ops {
    int (*table)(struct store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err);
    int (*table_find)(struct store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err);
    int (*pull_start)(struct store *s, uint64_t clock, const struct ps_pull_section *sections,
                      uint32_t n, struct err *err);
    int (*pull_wait)(struct store *s, struct err *err);
    /* In pull_start's place for what is no step of the training (validation): the rows are as new as
     * the servers have them, and no cache counts them as asked for. NULL: pull_start does that. */
    int (*pull_aside)(struct store *s, uint64_t clock, const struct ps_pull_section *sections,
                      uint32_t n, struct err *err);
    int (*push)(struct store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err);
    int (*flush)(struct store *s, struct err *err);
    int (*leave)(struct store *s, struct err *err);
    uint64_t (*clock)(const struct store *s);
    void (*stats)(const struct store *s, struct ps_stats *ret);
    /* Whose residuals are this run's; the store's. Touched by the thread that pushes. */
    struct encoder *(*encoder)(const struct store *s);
    /* For who holds a copy of the tables (store_mirror.c): every push is shown from here on. Returns
     * how many shards there are. May be NULL. */
    uint32_t (*set_tap)(struct store *s, const struct ps_tap *tap);
    void (*close)(struct store *s);
    uint64_t (*resume)(struct store *s);

    /* These rows are wanted next; the step before them has been pulled and is not pushed yet.
     * Starts fetching those that are not held here and that no push under way changes, so that
     * the pull that follows is short and brings the same bits. The sections and their keys stay
     * borrowed until that pull's wait; the dsts are not touched. NULL: nothing to gain. */
    int (*ahead)(struct store *s, const struct ps_pull_section *sections, uint32_t n,
                 struct err *err);

    /* Ends the pull_wait() that another thread is in, with -ECANCELED. NULL: it never waits. */
    void (*cancel)(struct store *s);

    bool overlaps; /* a pull and a push may be under way at once, each on a thread of its own */

    /* pull_start() and pull_wait() fill the sections' versions and places: a place of the store's own for each row,
     * that no other row of this answer has, or version 0. Two answers with the same place and version, of one table,
     * are the same bits: whoever has kept the one, at that place of his own, needs not be brought the other. */
    bool tells_places;
};

/* The head of each implementation's struct. */
struct store {
    const struct store_ops *ops;
    struct spool *
        spool; /* where the process after this one finds what was pushed; borrowed; NULL: nowhere */
};

int store_remote_open(const struct ps_options *options, struct store **ret, struct err *err)
    MUST_CHECK;

/* One shard in this process. checkpoint_dir: data directory (its newest checkpoint) or one
 * checkpoint to start from, several comma-separated for several nodes; NULL: empty. */
int store_local_open(const char *job, const char *checkpoint_dir, struct store **ret,
                     struct err *err) MUST_CHECK;

/* Makes data_dir, unless it is there, and sees that a checkpoint can be written into it: asked before the
 * run, not after it. */
int store_local_may_save(const char *data_dir, struct err *err) MUST_CHECK;

/* Writes the tables as a checkpoint that psd, eval and predict read. */
int store_local_save(struct store *s, const char *data_dir, struct err *err) MUST_CHECK;

#endif
