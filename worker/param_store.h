/*
 * The store of the trainer's tables: on servers (param_store_remote.c, over libps) or inside this process
 * (param_store_local.c, over server/core: the oracle of lock step, and the reader of checkpoints). The trainer sees no
 * difference.
 *
 * param_store_local.c and cache/ (behind param_store_exact_cache.c and param_store_stale_cache.c) are where worker/
 * includes server/core, param_store_local.c alone where it includes server/checkpoint: arrows down, and none back.
 */
#ifndef WORKER_PARAM_STORE_H
#define WORKER_PARAM_STORE_H

#include "worker/client/ps.h"

struct device_rows_step;
struct param_store;

/*
 * Threads: as in ps.h. If `overlaps` is false, calls must not overlap, also of different threads: the next one begins
 * after the last one has returned.
 *
 * PS_EFENCED comes from every call until resume() (ps_resume()).
 */
struct param_store_ops {
    int (*table)(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err);
    int (*table_find)(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err);
    int (*pull_start)(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err);
    int (*pull_wait)(struct param_store *s, struct err *err);
    /* Both in one: any number of them at once, each on a thread of its own. NULL: one at a time. */
    int (*pull)(struct param_store *s, uint64_t clock, const struct ps_pull_section *sections,
                uint32_t n, struct err *err);
    /* In pull_start's place for what is no step of the training (validation): the rows are as new as
     * the servers have them, and no cache counts them as asked for. NULL: pull_start does that. */
    int (*pull_for_eval)(struct param_store *s, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, struct err *err);
    int (*push)(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err);
    int (*flush)(struct param_store *s, struct err *err);
    int (*leave)(struct param_store *s, struct err *err);
    uint64_t (*clock)(const struct param_store *s);
    void (*stats)(const struct param_store *s, struct ps_stats *ret);
    /* The store's encoder, with the residuals of this run. Touched by the thread that pushes. */
    struct push_encoder *(*encoder)(const struct param_store *s);
    /* For a copy of the tables (param_store_exact_cache.c): the tap sees every later push. Returns the number
     * of shards. May be NULL. */
    uint32_t (*set_tap)(struct param_store *s, const struct ps_tap *tap);
    void (*close)(struct param_store *s);
    uint64_t (*resume)(struct param_store *s);

    /* These rows are wanted next; the step before them has been pulled and is not pushed yet. Starts fetching those
     * that are not held here and that no push under way changes, and fills the dsts of those that are held and that
     * the step's push does not change: so the pull that follows, of the same sections, is short and brings the same
     * bits. It may go on beside the caller until the next pull, push or prefetch_end(): so long the sections' arrays
     * stay borrowed, and the keys of the pull before it. NULL: nothing to gain. */
    int (*prefetch)(struct param_store *s, const struct ps_pull_section *sections, uint32_t n,
                    struct err *err);
    /* Waits until prefetch() looks at no array any more; what it has brought is good for the pull. NULL: it never
     * does. */
    void (*prefetch_end)(struct param_store *s);

    /* Ends the pull_wait() or pull() that other threads are in, with -ECANCELED. NULL: they never wait. */
    void (*cancel)(struct param_store *s);

    /* leave() is not to push what is held back. NULL: nothing is. */
    void (*drop_unpushed)(struct param_store *s);

    /* Copies the tables that this store has opened, with their optimizer's state and step counts, into an empty store
     * in this process (param_store_local_open()). No push is under way. NULL: they are in this process. */
    int (*copy)(struct param_store *s, struct param_store *to, struct err *err);

    /* From here on a device has the rows of this table, with their states, at n_places places, in place of the cache:
     * pulls of the training fill versions and places of its sections, of rows with a new version dst and states, and of
     * others neither. A row's version stays the same while pushes change it, as the device does, too. Before the first
     * pull. False: the cache cannot, as it does not have the table or its rows have other rules. NULL: it never can. */
    bool (*replicate)(struct param_store *s, uint32_t table, uint32_t n_places);

    /* The step of the last pull begins: the device is to change these rows (worker/cache/device_rows.h), and the next
     * push is the step's. */
    void (*begin_update)(struct param_store *s, struct device_rows_step *step);

    bool takes_pulled; /* ps_pull_section.pulled */
    bool overlaps; /* a pull and a push may be under way at once, each on a thread of its own */

    /* pull_start() and pull_wait() fill the sections' versions and places: for each row a place of the store's,
     * unique in this answer, or version 0. Two answers of one table with the same place and version have the same
     * bits, so a caller that has kept the first needs no copy of the second. */
    bool has_places;
};

/* The head of each implementation's struct. */
struct param_store {
    const struct param_store_ops *ops;
    struct push_journal *journal; /* of pushes, for the next process; borrowed; NULL: none */
};

int param_store_remote_open(const struct ps_options *options, struct param_store **ret,
                            struct err *err) MUST_CHECK;

/* Another store on the same client, of param_store_remote_open(), with a pull of its own under way: one for each thread
 * that reads. Closed before the first. table_find() of one at a time. */
struct param_store *param_store_remote_view(struct param_store *s);

#define PARAM_STORE_LOCAL_SHARDS_MAX 64u

/* Tables in this process. */
struct param_store_local_options {
    const char *job;
    /* A data directory (its newest checkpoint) or one checkpoint to start from, several comma-separated for several
     * nodes; NULL: empty */
    const char *checkpoint_dir;
    uint32_t n_shards;  /* 0: 1 */
    uint32_t n_threads; /* that share the shards, with the caller's; they change no result */
};

int param_store_local_open(const struct param_store_local_options *options,
                           struct param_store **ret, struct err *err) MUST_CHECK;

/* Makes data_dir, unless it is there, and sees that a checkpoint can be written into it: asked before the
 * run, not after it. */
int param_store_local_may_save(const char *data_dir, struct err *err) MUST_CHECK;

/* Writes the tables as a checkpoint that psd, eval and predict read. */
int param_store_local_save(struct param_store *s, const char *data_dir, struct err *err)
    MUST_CHECK;

#endif
