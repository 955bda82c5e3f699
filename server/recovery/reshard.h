/*
 * Resharding: brings rows to another layout, and lock-step jobs to one clock on all shards. Held pushes are not
 * moved to another layout. So rows of a shard that has combined a clock must not be joined with rows of a
 * shard that still holds pushes of that clock, or has not received them.
 *
 *     every old shard: recovered, its rows copied, reshard_add()
 *     reshard_check()      all have finished as many steps      done; held pushes are left out and reported
 *                          some are ahead                       all is recovered once more, at the clock that
 *                                                               all have finished, as with --at JOB:CLOCK
 *                          that would cost others their         PS_ENOCHECKPOINT, and the operator's options
 *                          pushes, or is not possible
 *
 * With --at no clock is changed: differences are reported.
 */
#ifndef SERVER_RECOVERY_RESHARD_H
#define SERVER_RECOVERY_RESHARD_H

#include "server/recovery/recover_shard.h"

struct reshard;

struct reshard *reshard_new(void);
/* NULL is fine. */
void reshard_free(struct reshard *a);

/* `number`: of the shard, in the cluster. */
void reshard_add(struct reshard *a, uint32_t number, struct shard *shard) ON_SHARD;

/* Forgets all added shards, because they are recovered again. */
void reshard_reset(struct reshard *a);

struct reshard_config {
    struct recover_shard_at at; /* as it was asked for */
    /* Nodes of the source whose shards go elsewhere: their clocks are unknown here. */
    uint32_t n_unseen_nodes;
    void (*report)(void *arg, const char *sentence);
    void *arg;
};

/* After all shards were added. ret_restart->job NULL: done. Else recover all of them again at *ret_restart, into
 * empty shards, add them, and call this once more. The name is borrowed from `a`. */
int reshard_check(struct reshard *a, const struct reshard_config *config,
                  struct recover_shard_at *ret_restart, struct err *err) MUST_CHECK;

/* Explains a failure of the second recovery: with PS_ENOCHECKPOINT the sentence names the clock it was for.
 * Returns `status`. */
int reshard_explain(const struct reshard *a, int status, struct err *err);

/* --- rows: one layout's shard -> the shards of another --- */

/* Copies tables, their step counts, and the rows of `from` whose keys belong to `to`. `from` is only read, so
 * several threads may copy from it at a time. Calls progress(arg) now and then; anything but 0 ends the copying with
 * that status; NULL is fine. PS_ESPEC, PS_EBUDGET, -ENOMEM, with a sentence: `to` has some of the rows. */
int reshard_rows(struct shard *from, struct shard *to, int (*progress)(void *arg), void *arg,
                 struct err *err) ON_SHARD MUST_CHECK;

/* The same of one table of `from`. */
int reshard_table(struct shard *from, uint32_t from_id, struct shard *to,
                  int (*progress)(void *arg), void *arg, struct err *err) ON_SHARD MUST_CHECK;

#endif
