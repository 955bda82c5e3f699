/*
 * A copy of some rows of all shards, in this process. It has one server/core shard for each shard of the servers,
 * which gets the same pushes. The same code then applies the same pushes to the same row and state, so a row of the
 * copy has the bits that a pull would bring.
 *
 *     pulled with state -> in the copy: every push changes it here, too -> evicted
 *
 * A push makes no rows here: a missing row stays missing until it is pulled. Rows of the copy may be
 * read any number of times, in any codec.
 *
 * The copy is exact as long as no other worker pushes, no server refuses a row for want of memory, and no
 * row is admitted late or expires. The owner (param_store_exact_cache.c) checks this
 * and the step counts that the servers send.
 */
#ifndef WORKER_CACHE_REPLICA_H
#define WORKER_CACHE_REPLICA_H

#include "common/thread_role.h"
#include "proto/section.h"
#include "worker/client/ps_types.h"
#include "worker/client/task_threads.h"

struct device_rows_step;
struct replica;
struct request;

struct replica_options {
    uint32_t n_shards;
    enum table_spec_mode mode; /* of the job */
    uint64_t max_bytes;        /* of rows of sparse tables; each shard gets an equal part */
    uint32_t n_turns; /* rows wanted or pushed to in the last n_turns turns are not evicted */
    struct task_threads threads; /* read rows, a shard at a time */
};

struct replica *replica_new(const struct replica_options *options);
void replica_free(struct replica *r) ON_SHARD;

/* The store's table number `table`: 0, 1, 2 ... in turn. */
int replica_add_table(struct replica *r, uint32_t table, const struct table_spec *spec,
                      struct err *err) ON_SHARD MUST_CHECK;
/* True if rows of the table can be copied: they are not admitted late and do not expire. */
bool replica_covers(const struct replica *r, uint32_t table);
const struct table_spec *replica_spec(const struct replica *r, uint32_t table);

/* From here on the device has the table's rows (cache/device_rows.h), at n_places places. Before the first row. False:
 * the table is not covered, or has rules that the device does not know. -> a section of it names versions, places and
 * states, and is read in CODEC_FP32. */
bool replica_move_to_device(struct replica *r, uint32_t table, uint32_t n_places)
    ON_SHARD MUST_CHECK;
bool replica_is_on_device(const struct replica *r, uint32_t table);

/* Fills the update of a step that begins. The next push of the table, to each shard, is its own. */
void replica_begin_update(struct replica *r, struct device_rows_step *step) ON_SHARD;

/* Removes every row and step count, and clears the filter of evicted keys; tables stay. Answers to
 * pulls that were sent before must not be received. */
int replica_clear(struct replica *r, struct err *err) ON_SHARD MUST_CHECK;

/* An interval begins, that of a pull. Each push begins one, too. False: the device's rows may not be what they should,
 * as a step was begun or read and not pushed. */
bool replica_begin_interval(struct replica *r) ON_SHARD MUST_CHECK;

/* Until the next interval rows are asked for that the next pull wants (param_store.h, prefetch). */
void replica_ask_ahead(struct replica *r);

/* Writes those of the ascending keys that are missing to ret_keys (which may be `keys`), and returns
 * how many; the others count as wanted in this interval. A key that no server can have a row for is made
 * here: its table was empty when the first answer came, and the row was never evicted. */
uint32_t replica_missing(struct replica *r, uint32_t table, const uint64_t *keys, uint32_t n,
                         uint64_t *ret_keys) ON_SHARD;

/* The step count of the shard's table after the pushes given to this replica. To be noted when a pull
 * is sent, for replica_receive(). */
uint64_t replica_n_pushes(const struct replica *r, uint32_t shard, uint32_t table) ON_SHARD;

/* Adds one shard's answer to a section with state: the rows of keys[numbers[0 .. n)]. The first answer
 * of a table brings its step count. `n_pushes`: when the pull was sent. *ret_flags:
 * SECTION_STATE_LIMITED.
 *
 *     PS_ECOUNT   the answer has the wrong length
 *     PS_ESEQ     the shard's step count differs: others have pushed, or it has lost pushes
 *     -ENOMEM */
int replica_receive(struct replica *r, const struct ps_pull_section *section, uint64_t n_pushes,
                    uint32_t shard, const uint32_t *numbers, uint32_t n, const uint8_t *values,
                    size_t value_bytes, uint8_t *ret_flags) ON_SHARD MUST_CHECK;

/* Fills the dsts, in the sections' codecs; of a device's rows what they have in their place. No row is missing. */
int replica_read(struct replica *r, const struct ps_pull_section *sections, uint32_t n,
                 struct err *err) ON_SHARD MUST_CHECK;
/* The same by the calling thread alone: the others have something else to do. */
int replica_read_alone(struct replica *r, const struct ps_pull_section *sections, uint32_t n,
                       struct err *err) ON_SHARD MUST_CHECK;

/* One shard's push, with the store's numbers of tables. A push that the shard refuses is refused here,
 * too: no error. *ret_n_versions: by how much it raises the server's version (struct ps_tap).
 * *ret_left_out: rows of it that are missing here. -ENOMEM. */
int replica_push(struct replica *r, uint32_t shard, const struct request *push,
                 uint64_t *ret_n_versions, uint64_t *ret_left_out) ON_SHARD MUST_CHECK;

/* True if a row of this key was here and was evicted. By a Bloom filter: rarely true of another key. */
bool replica_was_evicted(const struct replica *r, uint32_t table, uint64_t key);
/* Adds the key to the filter. (Evictions do so themselves; for tests.) */
void replica_note_evicted(struct replica *r, uint32_t table, uint64_t key);

uint64_t replica_n_rows(const struct replica *r) ON_SHARD;
/* Of those that a device has, which are not among them. */
uint64_t replica_n_device_rows(const struct replica *r);

#endif
