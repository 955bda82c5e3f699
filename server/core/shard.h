/*
 * What one shard knows and can do: its tables, its jobs, and pull and push on them. No sockets,
 * no files, no clock, no thread: time is an argument, and given the same calls in the same
 * order it ends in the same bytes.
 *
 * A shard belongs to one thread from shard_new() to shard_free().
 *
 * Consistency (DESIGN.md, "Consistency, exactly"):
 *   - asynchronous and bounded-staleness tables: a push is applied when it arrives;
 *   - lock step (BSP) tables: the gradients of clock c wait until every counted worker has
 *     ticked past c, then they are combined in rank order, weighted by n_samples / total, and
 *     applied once; assignments, which are how tables begin, are applied when they arrive;
 *   - a worker is counted while it is expected (not yet joined, until the join deadline) or
 *     live (lease);
 *   - pull(c, s) is answered once min clock >= c - s; s is the strictest bound of the tables
 *     asked for; in a job of bounded staleness none of a step behind a meeting before all have come
 *     to it (shard_config.meet_steps), and no push of one is judged.
 *
 * A push is judged when its number is next: applied or refused, the number is used up and the
 * tick counts, so a refusal is told once and never stops the job. All that can fail fails
 * before a weight has changed.
 *
 * This is the interface; shard_*.c are behind it, and README.md beside it tells the way of a
 * push through them.
 */
#ifndef SERVER_CORE_SHARD_H
#define SERVER_CORE_SHARD_H

#include "common/histogram.h"
#include "common/status.h"
#include "common/thread_role.h"
#include "proto/keys.h"
#include "proto/section.h"
#include "proto/spec.h"
#include "server/core/roster.h"
#include "server/core/shard_journal.h"
#include "server/core/table.h"

#define SHARD_N_TABLES_MAX 1024u

struct shard;

struct shard_config {
    uint32_t shard, n_shards;  /* this one, and how many the cluster has */
    uint64_t memory_max_bytes; /* rows, index and sketches of all tables; 0: no limit */
    uint32_t lease_ms;         /* a worker that is silent for longer is dead */
    uint32_t join_ms;          /* how long the others wait for a worker that has never come */
    uint32_t park_ms;          /* the longest that a pull may be parked */
    /* Jobs in bounded staleness meet every so many steps, which makes a cut (shard_cut.h); 0: never */
    uint32_t meet_steps;
};

/* One table as the outside sees it. n_pushes counts pushes of gradients, also empty ones, and
 * all pushes of one lock-step clock as one; assignments do not count. */
struct shard_table {
    struct table_spec spec;
    struct table *rows;                    /* owned by the shard */
    uint64_t n_pushes;                     /* the optimizer's t, see below */
    uint32_t payload_bytes, weights_bytes; /* of a row, and the weights' part of it */
    uint64_t rows_refused;
    uint64_t rows_pulled, rows_pushed;
    /* Pushes of keys that were not admitted; rows that went: to make room, not pushed for
     * idle_clocks, for ttl_s, too seldom. */
    uint64_t rows_unadmitted, rows_evicted, rows_idle, rows_expired, rows_rare;
    uint64_t bytes_max;    /* this shard's part of the table's budget; 0: no limit of its own */
    uint64_t sketch_bytes; /* of what counts keys that have no row yet */
};

struct shard_push_result {
    int status;     /* what the worker is told: 0 or a refusal */
    char text[200]; /* a sentence when refused */
    /* Had been judged before; nothing done. The worker's last refused push is refused again. */
    bool repeated;
    uint64_t min_clock, version;
    uint64_t rows_refused; /* new rows that found no place in the budget during this call */
};

/* The last push that held NaN or Inf, or was refused otherwise: kept for the operator. table is
 * "" and key 0 where the refusal is not about one. */
struct shard_refusal {
    uint64_t n; /* how many so far */
    int status;
    char text[200];
    char worker[64];
    char table[SPEC_NAME_MAX];
    uint64_t key, clock;
};

/* Single writer: the shard's thread. Others read a copy that shard_thread publishes. */
struct shard_counters {
    uint64_t pulls, pushes, pushes_repeated, pushes_refused, pushes_fenced, ticks;
    uint64_t rows_pulled, rows_pushed, rows_new, rows_refused;
    uint64_t rows_unadmitted, rows_evicted, rows_idle, rows_expired, rows_rare;
    uint64_t nan_pushes, combined_clocks;
    uint64_t value_bytes_in[CODEC_ID_END], value_bytes_out[CODEC_ID_END]; /* as encoded */
    uint64_t pushes_dropped; /* held for a clock that their worker did not end, or did again */
};

struct shard *shard_new(const struct shard_config *config);
void shard_free(struct shard *s) ON_SHARD;

/* As it was when it was new, at the same address: what a restore that failed has put in goes. No walk
 * and no journal may be there. */
void shard_clear(struct shard *s) ON_SHARD;

/* Makes the table, or finds it with the same specification. With must_exist only the name
 * counts. PS_ESPEC (err says which field), PS_ENOTABLE (must_exist), -ENOMEM, -ENOSPC,
 * -EAGAIN (the journal is full). */
int shard_table_ask(struct shard *s, const struct table_spec *spec, bool must_exist,
                    uint32_t *ret_id, struct err *err) ON_SHARD MUST_CHECK;

/* Table number id, or NULL. Ids count from 0 without a gap. */
struct shard_table *shard_table(struct shard *s, uint32_t id) ON_SHARD;
uint32_t shard_n_tables(const struct shard *s) ON_SHARD;

/* The jobs and their workers: join, beat, leave, look up (roster.h). */
struct roster *shard_roster(struct shard *s) ON_SHARD;

/* One push of `worker`. Always fills *ret. Returns 0 when the push is or had been judged, else
 * (the same as ret->status) why it was not, its number being still to come: -ENOMEM (all is as
 * it was; also when it is ahead of the others and there is no place for it while they are
 * behind), -EAGAIN (the same, the journal being full), -EBUSY (it is behind a meeting to which another
 * worker has still to come), PS_ESEQ, PS_ENOJOIN (worker is NULL), PS_EFENCED (not live).
 *
 * Refusals: PS_ENOTABLE, PS_EWIDTH (values), PS_ECODEC, PS_ECOUNT, PS_EORDER, PS_ESHARD,
 * PS_ENAN, PS_EPROTO (a table in two sections; a clock out of range, or of a lock-step push one
 * that the worker has ticked past), PS_EBUDGET and PS_ETOOBIG (too much is held for lock step).
 * One fault refuses the whole push. Rows of sparse tables that have no place in the memory budget, or
 * find no memory at all, refuse nothing: they are left out, in ascending order of keys the last
 * ones, and counted. Blocks of a dense table that find no place refuse it (PS_EBUDGET), or leave it
 * unjudged (-ENOMEM).
 *
 * After it, parked pulls may have become ready. */
int shard_push(struct shard *s, struct worker *worker, const struct push *push, uint64_t now_ms,
               struct shard_push_result *ret) ON_SHARD MUST_CHECK;

/*
 * The same in slices of about SHARD_SLICE_BYTES of rows, so that a large push stalls nobody for
 * longer than a slice. What a push is does not change: it is judged whole, and takes its place in
 * the order of pushes (number, version, step count, tick) at one moment, before its first row
 * changes. From then on whoever reads or changes a row that it has still to change gets that row
 * changed first; so all see it as if it had happened at once. Only who is asked first for room,
 * when a budget is full or keys are admitted by their count, may be another.
 *
 * One at a time is under way in a shard; smaller ones overtake it. *push, the bytes that it
 * points to and *worker stay borrowed while it is. ret is filled, as of that moment, when all of
 * its rows have changed; the status returned then is shard_push()'s.
 */
enum shard_push_state {
    SHARD_PUSH_JUDGED,
    SHARD_PUSH_UNDER_WAY, /* shard_push_more() goes on with it */
    SHARD_PUSH_LATER /* too large to overtake the one under way: nothing done, begin again */
};

#define SHARD_SLICE_BYTES (512u << 10)

int shard_push_begin(struct shard *s, struct worker *worker, const struct push *push,
                     uint64_t now_ms, struct shard_push_result *ret,
                     enum shard_push_state *ret_state) ON_SHARD MUST_CHECK;
int shard_push_more(struct shard *s, uint64_t now_ms, struct shard_push_result *ret,
                    enum shard_push_state *ret_state) ON_SHARD MUST_CHECK;

/* All that is left of the push under way, at once: before a worker joins or leaves, before a
 * checkpoint, before its bytes go. shard_push_more() then tells how it was judged. */
void shard_settle(struct shard *s) ON_SHARD;

/* Counts a push that did not get so far: roster_find() says that its sender is fenced. */
void shard_push_fenced(struct shard *s) ON_SHARD;

/* Sizes of the answer: ret_value_bytes[i] for each section, before room is made for anything; of a
 * section that asks for state (section.h) the most that it can take.
 * Refuses unknown tables, wrong codecs, more keys than can stand in their bytes, counts whose
 * answer would pass `max_bytes`: PS_ENOTABLE, PS_ECODEC, PS_ECOUNT, PS_ETOOBIG. */
int shard_pull_plan(struct shard *s, const struct pull *pull, size_t max_bytes,
                    size_t *ret_value_bytes, struct err *err) ON_SHARD MUST_CHECK;

/* May this pull be answered now? worker NULL (a reader): always. */
bool shard_pull_ready(struct shard *s, const struct worker *worker, const struct pull *pull)
    ON_SHARD;

/* The min clock of its job that a pull waits for; 0: any will do. *ret_is_cut: it is a meeting's, and
 * not the bound's. */
uint64_t shard_pull_needs(const struct shard *s, const struct job *job, const struct pull *pull,
                          bool *ret_is_cut) ON_SHARD;

/* Encodes the rows into dst (one section behind the other). A key without a
 * row reads as its initial weights; pulling makes no row. Counts the staleness that the answer
 * really has, when worker is given; without, min clock is 0. PS_ECOUNT, PS_EORDER, PS_ESHARD,
 * -ENOMEM: nothing counted, dst undefined. */
int shard_pull(struct shard *s, struct worker *worker, const struct pull *pull, uint8_t *dst,
               uint64_t *ret_min_clock, uint64_t *ret_version, struct err *err)
    ON_SHARD MUST_CHECK;

/* The same in slices: a pull being answered. Each row is read whole; between slices others
 * change rows. *pull, the bytes that it points to and dst stay borrowed. */
struct shard_pull_run {
    const struct pull *pull;
    uint64_t min_clock, version; /* when reading began: the answer holds at least these */
    uint8_t *dst;                /* where the next row goes */
    uint32_t section;            /* the one being read */
    uint32_t n_read;             /* rows of it */
    uint8_t *present;            /* of a section that asks for state: its bits, in the answer */
    struct keys_reader keys;     /* of that section */
    const uint64_t *known; /* shard_pull_know(): the next key of those to be read; or NULL */
    size_t n_known;        /* how many were read so far */
    bool is_open;          /* `keys` has begun */
    bool done;             /* all rows are read: shard_pull_end() */
    /* What the sections read so far have taken, the one being read up to here included: what was
     * planned, or less where it asks for state. */
    size_t value_bytes[SECTIONS_MAX];
};

/* worker NULL: a reader, for whom min clock is 0. */
void shard_pull_begin(struct shard *s, const struct worker *worker, const struct pull *pull,
                      uint8_t *dst, struct shard_pull_run *ret) ON_SHARD;
/* Before the first slice: reads the keys, all sections' behind each other, to `keys`, which stays
 * borrowed: some tens of thousands in a call, until run->known is set. Then no slice can be refused any
 * more. Refusals as shard_pull(). */
int shard_pull_know(struct shard *s, struct shard_pull_run *run, uint64_t *keys,
                    struct err *err) ON_SHARD MUST_CHECK;
/* One slice more. Refusals as shard_pull(). */
int shard_pull_more(struct shard *s, struct shard_pull_run *run, struct err *err)
    ON_SHARD MUST_CHECK;
/* Counts a pull that was read to its end, as shard_pull() does. */
void shard_pull_end(struct shard *s, struct worker *worker, const struct shard_pull_run *run)
    ON_SHARD;
/* What a slice writes at most, of a pull that shard_pull_plan() has passed and that asks for no state.
 * dst may be another one in each slice. */
size_t shard_pull_slice_room(const struct shard *s, const struct pull *pull) ON_SHARD;
/* Is one slice not enough? For a pull that shard_pull_plan() has passed. */
bool shard_pull_is_large(const struct shard *s, const struct pull *pull) ON_SHARD;

/* From here on the journal (shard_journal.h; borrowed) is told all that changes the shard; NULL: no
 * more. To be called between requests, after shard_settle(). */
void shard_listen(struct shard *s, const struct shard_journal *journal) ON_SHARD;

/* Time passes: leases and join deadlines end, lock-step clocks that waited for the
 * dead are applied. True if a parked pull may have become ready. Also to be called
 * after roster_leave(). */
bool shard_advance(struct shard *s, uint64_t now_ms) ON_SHARD;

/* Puts a row from a checkpoint in place; stamp as row_stamp(), payload: payload_bytes of the
 * table, or NULL: as a row begins. Keys of other shards: 0, nothing done. PS_ENOTABLE; PS_ECORRUPT
 * (a block that the dense table does not have); PS_EBUDGET: no silent loss; -ENOMEM. */
int shard_restore_row(struct shard *s, uint32_t table_id, uint64_t key, uint64_t stamp,
                      const void *payload) ON_SHARD MUST_CHECK;

/* Many of them: rows as a walk writes them, key u64, stamp u64, payload; keys u64 of rows that are not to be
 * there. *ret_n_ours: those that are this shard's; nothing is done with others. */
int shard_restore_rows(struct shard *s, uint32_t table_id, const uint8_t *rows, uint32_t n_rows,
                       uint32_t *ret_n_ours) ON_SHARD MUST_CHECK;
int shard_restore_gone(struct shard *s, uint32_t table_id, const uint8_t *keys, uint32_t n_keys,
                       uint32_t *ret_n_ours) ON_SHARD MUST_CHECK;

/* About so many rows of the table are to be restored: an empty one makes ready for them. */
void shard_restore_expect(struct shard *s, uint32_t table_id, uint64_t n_rows) ON_SHARD;

/* Counts only grow: what is there stands where it is greater. */
void shard_restore_counts(struct shard *s, uint32_t table_id, uint64_t n_pushes,
                          uint64_t version) ON_SHARD;

uint64_t shard_version(const struct shard *s) ON_SHARD;
/* Rows, index, and pushes held for lock step. */
uint64_t shard_bytes(const struct shard *s) ON_SHARD;
const struct shard_counters *shard_counters(const struct shard *s) ON_SHARD;
const struct shard_refusal *shard_last_refusal(const struct shard *s) ON_SHARD;

#endif
