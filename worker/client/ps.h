/*
 * libps: the client library. Row values in, row values out; it chooses the shard, encodes,
 * reconnects and resends.
 *
 * A client owns one libuv loop, run by threads that wait and else by a thread of its own, and one link to each shard of
 * the cluster. Every wait has a deadline; when a shard is away the library reconnects, reports it through on_notice,
 * resends unacknowledged pushes, and gives up with a sentence after `give_up_ms`.
 *
 * Threads:
 *
 *     ps_pull_start(), ps_pull_wait(),          any thread, at any time
 *     ps_pull_next(), ps_pull_cancel(),
 *     ps_stats(), ps_clock(), ps_resume(),
 *     ps_stop()
 *     ps_push(), ps_flush(), ps_leave()         one thread at a time
 *     ps_table(), ps_table_find()               one thread at a time
 *     ps_open(), ps_close(), ps_set_tap()       while no other call is under way
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

/* Makes the table on all shards, or finds it there with the same specification. -EINTR (options.is_interruptible): the
 * same call goes on with the request; another one waits for its answer first. */
int ps_table(struct ps_client *c, const struct table_spec *spec, uint32_t *ret_table,
             struct err *err) MUST_CHECK;

/* Finds a table by spec->name and fills the rest of *spec. PS_ENOTABLE if it is not there. */
int ps_table_find(struct ps_client *c, struct table_spec *spec, uint32_t *ret_table,
                  struct err *err) MUST_CHECK;

/* The specification of a table as it was made or found, borrowed; NULL: no such table. */
const struct table_spec *ps_table_spec(const struct ps_client *c, uint32_t table);

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

/* The same, for a caller that waits in slices, or for many pulls at once. `tag`, of the caller, not NULL, is what
 * ps_pull_next() returns. until_ns: in uv_hrtime(). -EAGAIN then, and -EINTR (options.is_interruptible), have not ended
 * the pull. */
int ps_pull_start_tagged(struct ps_client *c, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, void *tag,
                         struct ps_pull **ret_pull, struct err *err) MUST_CHECK;
int ps_pull_wait_until(struct ps_client *c, struct ps_pull *pull, uint64_t until_ns,
                       struct err *err) MUST_CHECK;

/* Waits while the worker joins again, as ps_pull_start() does, and returns what that would; -EAGAIN at until_ns, in
 * uv_hrtime(), and -EINTR. */
int ps_ready_until(struct ps_client *c, uint64_t until_ns, struct err *err) MUST_CHECK;

/* A pull with a tag for which no wait would last and that nobody waits for, the first that came, and its tag; NULL:
 * there is none. Each comes once, and again behind a wait that did not end it. *ret_more: there is another one.
 * options.on_came. */
struct ps_pull *ps_pull_next(struct ps_client *c, void **ret_tag, bool *ret_more);
bool ps_pull_has_next(struct ps_client *c);

/* The pull's wait ends with -ECANCELED, also one that has not begun; the answer is dropped. NULL: of all pulls that are
 * under way now. A pull that has ended is left alone, unless its memory is another pull's by now: who cancels a pull
 * knows that nobody has waited for it, or gives NULL. */
void ps_pull_cancel(struct ps_client *c, struct ps_pull *pull);

/* The same, of a pull with this tag: one that has ended, and whose memory is another pull's by now, is left alone. */
void ps_pull_cancel_tagged(struct ps_client *c, struct ps_pull *pull, const void *tag);

/* After PS_EFENCED: lets calls through again and returns the clock to continue at: ps_clock(), or the clock after the
 * last step whose pushes were made, if that is greater. */
uint64_t ps_resume(struct ps_client *c);

/* Sends one numbered push to every shard (also to those that own none of the keys: the
 * optimizer's step count needs it). Copies what it needs and returns. With `tick` the worker's
 * clock becomes clock + 1. -ENOMEM: nothing was pushed. */
int ps_push(struct ps_client *c, uint64_t clock, uint32_t n_samples, bool tick,
            const struct ps_push_section *sections, uint32_t n, struct err *err) MUST_CHECK;

/* Waits until every push is acknowledged. ps_flush_until(): -EAGAIN at until_ns, in uv_hrtime(); -EINTR. */
int ps_flush_until(struct ps_client *c, uint64_t until_ns, struct err *err) MUST_CHECK;
MUST_CHECK static inline int ps_flush(struct ps_client *c, struct err *err)
{
    return ps_flush_until(c, UINT64_MAX, err);
}

/* Flushes, then says goodbye: the other workers no longer wait for this one. Only ps_stats()
 * and ps_close() may follow, unless it returns PS_EFENCED. The journal stays until ps_close(): a process that is killed
 * before would else train its run again. ps_leave_until(): -EAGAIN at until_ns, in uv_hrtime(), and -EINTR: it has not
 * left, and the same call goes on. */
int ps_leave_until(struct ps_client *c, uint64_t until_ns, struct err *err) MUST_CHECK;
MUST_CHECK static inline int ps_leave(struct ps_client *c, struct err *err)
{
    return ps_leave_until(c, UINT64_MAX, err);
}

/* Ends every wait, of any thread, with -ECANCELED and this sentence, for good. Any thread. */
void ps_stop(struct ps_client *c, const char *sentence);

/* The clock at which the shards want this worker to go on: 0, or more for one that returns.
 * Grows after a rejoin: a worker declared dead (PS_EFENCED) joins again as a new incarnation by
 * itself, drops what was under way, and says so in `rejoins`. */
uint64_t ps_clock(const struct ps_client *c);

/* The step after the last one whose push was made, or ps_clock(), if that is greater. */
uint64_t ps_next_clock(const struct ps_client *c);

uint32_t ps_n_shards(const struct ps_client *c);

/* From the next push on; *tap is copied. */
void ps_set_tap(struct ps_client *c, const struct ps_tap *tap);

void ps_stats(const struct ps_client *c, struct ps_stats *ret);

/* The encoder, with the residuals (push_encoder.h); owned by the client. For the thread that pushes,
 * between two pushes. */
struct push_encoder;
struct push_encoder *ps_encoder(const struct ps_client *c);

/* --- whole tables --- */

/* Sets rows: n ascending keys, n x dim weights, and, unless NULL, n x table_spec_state_floats() of optimizer state
 * (Adagrad's s, Adam's m and v ...); without, the state begins anew. steps: with state, the table's step count (for
 * Adam's bias correction) becomes this if it is less. Rows are made where there are none, past the admission filter,
 * within the table's memory limits; ps_stats().rows_refused counts those that found no place. They travel as pushes of
 * op SECTION_ASSIGN(_STATE) of the next step (ps_next_clock()), each applied once, of at most PS_ASSIGN_BYTES of rows
 * or one row: up to there all take effect at one version of each shard. Returns as ps_push() does; a refusal comes with
 * a later call, and ps_flush() waits for it. PS_ENAN, before anything is sent: NaN or infinity; err names the key. */
#define PS_ASSIGN_BYTES ((size_t)8 << 20)
int ps_assign(struct ps_client *c, uint32_t table, const uint64_t *keys, size_t n,
              const float *weights, const float *state, uint64_t steps, struct err *err)
    MUST_CHECK;

/* The parts of it, for a caller that waits between them: what it checks first, and one push of n keys, at most
 * ps_assign_rows_max() of the table. */
int ps_assign_check(struct ps_client *c, uint32_t table, const uint64_t *keys, size_t n,
                    const float *weights, const float *state, struct err *err) MUST_CHECK;
int ps_assign_slice(struct ps_client *c, uint32_t table, const uint64_t *keys, size_t n,
                    const float *weights, const float *state, uint64_t steps, struct err *err)
    MUST_CHECK;
size_t ps_assign_rows_max(const struct table_spec *spec);

/* Scans a table, whether it is trained or not: all shards at once, a slice of each in every call. A key that has a row
 * from the beginning to the end comes exactly once, with its weights of the beginning or of a later moment; one that
 * comes or goes meanwhile, once or not at all; none comes twice. The servers keep nothing of a scan: it may stop
 * anywhere, and goes on after a reconnect, and after a restart of a shard. (As what is not on the disk yet can be read,
 * too, a restart leaves the promise to rows whose pushes were safe when the scan began.) For workers and readers; it
 * moves no clock. */
struct ps_scan;
struct ps_scan_options {
    bool state; /* the optimizer's state, too */
    uint32_t
        slice_bytes; /* of each shard in a call; 0: 256 KiB; a shard sends 512 KiB at most */
};

/* Of one call, in no order; borrowed until the next one. */
struct ps_scan_rows {
    size_t n;             /* may be 0 before the end */
    const uint64_t *keys; /* [n] */
    const float *weights; /* [n][dim] */
    const float *state;   /* [n][table_spec_state_floats()], or NULL */
    uint64_t steps; /* with state: the table's step count, the largest of a shard so far */
};

/* `options` NULL: all 0. */
int ps_scan_start(struct ps_client *c, uint32_t table, const struct ps_scan_options *options,
                  struct ps_scan **ret_scan, struct err *err) MUST_CHECK;

/* True until every slice has been handed out. */
bool ps_scan_goes_on(const struct ps_scan *scan);

/* The next slices. After an error the same call can be made again, and nothing is lost or doubled. But -ESTALE is
 * final: a shard has restarted without pushes that it had applied. PS_EVERSION: a psd of the cluster is too old. */
int ps_scan_next(struct ps_scan *scan, struct ps_scan_rows *ret, struct err *err) MUST_CHECK;
/* -EAGAIN at until_ns, in uv_hrtime(), and -EINTR: the slices are on their way, and the same call goes on. */
int ps_scan_next_until(struct ps_scan *scan, uint64_t until_ns, struct ps_scan_rows *ret,
                       struct err *err) MUST_CHECK;

/* The version of a shard of which the scan has every row, or a later one. 0: it has not answered yet. */
uint64_t ps_scan_version(const struct ps_scan *scan, uint32_t shard);

/* At any time, before ps_close(). NULL is fine. */
void ps_scan_free(struct ps_scan *scan);

#endif
