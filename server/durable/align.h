/*
 * Jobs in lock step at one clock, when the shards of a layout are dealt out to another. What waits for its clock does
 * not travel (deal.h): rows of a shard that has combined a clock must not be put together with rows of one on which
 * pushes of it still wait, or have not come.
 *
 *     every old shard: made again, dealt out, align_note()
 *     align_judge()      all have finished as many steps      it is done; what waits is left out, and that is told
 *                        some are ahead                       all of it once more, at the clock that all have
 *                                                             reached, as with --at JOB:CLOCK
 *                        that would cost others their         PS_ENOCHECKPOINT, and what a person can do
 *                        pushes, or cannot be had
 *
 * Where --at was given nothing is brought anywhere: what differs is told.
 */
#ifndef SERVER_DURABLE_ALIGN_H
#define SERVER_DURABLE_ALIGN_H

#include "server/durable/rebuild.h"

struct align;

struct align *align_new(void);
/* NULL is fine. */
void align_free(struct align *a);

/* `number`: of the shard, in the cluster. */
void align_note(struct align *a, uint32_t number, struct shard *shard) ON_SHARD;

/* All is made again from the beginning: what has been noted this time does not count. */
void align_forget(struct align *a);

struct align_config {
    struct rebuild_at at; /* as it was asked for */
    /* The source's other nodes, whose shards are dealt out elsewhere: nobody sees how far these are. */
    uint32_t n_unseen_nodes;
    void (*report)(void *arg, const char *sentence);
    void *arg;
};

/* When all have been noted. ret_again->job NULL: it is done. Else all of them are made again at *ret_again, into shards
 * that have nothing, and noted; then here once more. The name is borrowed from `a`. */
int align_judge(struct align *a, const struct align_config *config,
                struct rebuild_at *ret_again, struct err *err) MUST_CHECK;

/* A failure of the second time: with PS_ENOCHECKPOINT the sentence is about what it was to be made again for. Returns
 * `status`. */
int align_explain(const struct align *a, int status, struct err *err);

#endif
