/*
 * libps: the client library. Row values in, row values out; it chooses the shard, encodes,
 * reconnects and resends.
 *
 * A client owns one network thread with a libuv loop and one link to each shard of the cluster. Every wait has a
 * deadline; when a shard is away the library reconnects, reports it through on_notice, resends unacknowledged pushes,
 * and gives up with a sentence after `give_up_ms`.
 *
 * Threads:
 *
 *     ps_pull_start(), ps_pull_wait(),          any thread, at any time
 *     ps_pull_cancel(), ps_stats(), ps_clock()
 *     ps_push()                                 one thread at a time
 *     all others                                while no other call is under way
 *
 * So a pull that a shard has parked delays neither a push nor another pull. A pull that is started after ps_push() has
 * returned sees that push; a pull that is started before may or may not.
 *
 * A call that cannot be meant returns -EINVAL with a sentence, and has changed nothing: sections of no table, keys that
 * do not ascend, a push by a reader, anything after ps_leave().
 */
#ifndef WORKER_CLIENT_PS_H
#define WORKER_CLIENT_PS_H

#include "worker/client/ps_types.h"

struct ps_client;
struct ps_pull;

/* Connects, learns the cluster, greets and joins every shard. Waits until connect_ms for
 * servers that are not there yet. */
int ps_open(const struct ps_options *options, struct ps_client **ret_client, struct err *err)
    MUST_CHECK;

/* Drops all requests; does not wait (ps_flush() and ps_leave() do), but that a worker which has never pushed leaves the
 * job, within 1 s. NULL is fine. */
void ps_close(struct ps_client *c);

/* Makes the table on all shards, or finds it there with the same specification. */
int ps_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
             struct err *err) MUST_CHECK;

/* Finds a table by spec->name and fills the rest of *spec. PS_ENOTABLE if it is not there. */
int ps_table_find(struct ps_client *c, struct table_spec *spec, uint32_t *ret_table,
                  struct err *err) MUST_CHECK;

/* One round trip: all sections, all shards. `clock`: the step that the rows are for. It may be ahead of the pushes, by
 * as many steps as the job's bound allows: the pull carries the number of unfinished steps. `start` returns at once.
 * The sections, with what they point to, stay borrowed until `wait` returns: it fills the dsts, and ends the pull,
 * whatever it returns. Many pulls may be under way at a time, and be waited for in any order. A shard has at most 16 of
 * a worker; later ones follow as it answers. After ps_resume() a pull from before ends with PS_EFENCED; `cancel` and
 * then `wait` end any pull at once. `wait` without a pull, or for one that has ended, is -EINVAL.
 *
 * The next call from here to ps_leave() reports an error of an earlier push, and does nothing else:
 *
 *     PS_EFENCED    the servers had declared this worker dead. It has already joined again; the pulls and pushes
 *                   that were under way are dropped. All calls return it until ps_resume(), which returns the clock
 *                   to continue at.
 *     another       a push was refused (PS_ENAN ...); err names the shard and the reason. Later pushes are not
 *                   affected. Reported once.
 *
 * A shard that stays away is final: every call then returns the same sentence. */
int ps_pull_start(struct ps_client *c, uint64_t clock, const struct ps_pull_section *sections,
                  uint32_t n, struct ps_pull **ret_pull, struct err *err) MUST_CHECK;
int ps_pull_wait(struct ps_client *c, struct ps_pull *pull, struct err *err) MUST_CHECK;

/* The pull's wait ends with -ECANCELED, also one that has not begun; the answer is dropped. NULL: of all pulls that are
 * under way now. A pull that has ended is left alone, unless its memory is another pull's by now: who cancels a pull
 * knows that nobody has waited for it, or gives NULL. */
void ps_pull_cancel(struct ps_client *c, struct ps_pull *pull);

/* After PS_EFENCED: lets calls through again and returns the clock to continue at: ps_clock(), or the clock after the
 * last step whose pushes were made, if that is greater. */
uint64_t ps_resume(struct ps_client *c);

/* Sends one numbered push to every shard (also to those that own none of the keys: the
 * optimizer's step count needs it). Copies what it needs and returns. With `tick` the worker's
 * clock becomes clock + 1. -ENOMEM: nothing was pushed. */
int ps_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick,
            const struct ps_push_section *sections, uint32_t n, struct err *err) MUST_CHECK;

/* Waits until every push is acknowledged. */
int ps_flush(struct ps_client *c, struct err *err) MUST_CHECK;

/* Flushes, then says goodbye: the other workers no longer wait for this one. Only ps_stats()
 * and ps_close() may follow, unless it returns PS_EFENCED. The journal stays until ps_close(): a process that is killed
 * before would else train its run again. */
int ps_leave(struct ps_client *c, struct err *err) MUST_CHECK;

/* The clock at which the shards want this worker to go on: 0, or more for one that returns.
 * Grows after a rejoin: a worker declared dead (PS_EFENCED) joins again as a new incarnation by
 * itself, drops what was under way, and says so in `rejoins`. */
uint64_t ps_clock(const struct ps_client *c);

uint32_t ps_n_shards(const struct ps_client *c);

/* From the next push on; *tap is copied. */
void ps_set_tap(struct ps_client *c, const struct ps_tap *tap);

void ps_stats(const struct ps_client *c, struct ps_stats *ret);

/* The encoder, with the residuals (push_encoder.h); owned by the client. For the thread that pushes,
 * between two pushes. */
struct push_encoder;
struct push_encoder *ps_encoder(const struct ps_client *c);

/* Operator's question to one node; proto/README.md, "Operators", lists the commands. JSON
 * text, to be freed. No ps_open() needed; blocks up to timeout_ms. */
int ps_admin(const char *server, const char *token, const char *command, const char *argument,
             uint32_t timeout_ms, char **ret_json, struct err *err) MUST_CHECK;

#endif
