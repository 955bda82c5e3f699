/*
 * A copy of some rows of all shards, in this process: for each shard of the servers one of
 * server/core, which is given the very bytes that the server's shard is given. The same code has
 * then applied the same pushes to the same row and state, so a row that is held has the bits that
 * a pull would bring.
 *
 *     pulled with state --> held: every push changes it here, too --> gone (room.h)
 *
 * What is not held stays not held: a push makes no rows here. Held rows may be read as often as
 * wanted, in any codec.
 *
 * This holds as long as nobody else pushes, no server leaves a row out, and rows do not come late or
 * go by rules of their own. Who keeps a replica sees to it (store_mirror.c), with the step counts
 * that the servers tell.
 */
#ifndef WORKER_MIRROR_REPLICA_H
#define WORKER_MIRROR_REPLICA_H

#include "common/thread_role.h"
#include "proto/section.h"
#include "worker/client/ps_types.h"

struct replica;

struct replica_options {
    uint32_t n_shards;
    enum spec_mode mode; /* of the job */
    uint64_t max_bytes; /* rows that may go are held up to here, an equal part for each shard */
    uint32_t n_turns;   /* what was wanted or pushed to in the last so many turns does not go */
};

struct replica *replica_new(const struct replica_options *options);
void replica_free(struct replica *r) ON_SHARD;

/* The store's table number `table`: 0, 1, 2 ... in turn. */
int replica_add_table(struct replica *r, uint32_t table, const struct table_spec *spec,
                      struct err *err) ON_SHARD MUST_CHECK;
/* May rows of the table be held? Not when they come late or go by themselves. */
bool replica_covers(const struct replica *r, uint32_t table);
const struct table_spec *replica_spec(const struct replica *r, uint32_t table);

/* Forgets every row and count; tables stay. */
int replica_clear(struct replica *r, struct err *err) ON_SHARD MUST_CHECK;

/* A turn begins; so does one with each push. */
void replica_turn(struct replica *r) ON_SHARD;

/* Those of the ascending keys that are not held, into ret_keys (which may be `keys`); those that
 * are will be wanted in this turn. A key that no server can have a row for is held from now on, as
 * it begins: its table was empty when its count was learnt, and the row has never gone from here.
 * Returns how many. */
uint32_t replica_missing(struct replica *r, uint32_t table, const uint64_t *keys, uint32_t n,
                         uint64_t *ret_keys) ON_SHARD;

/* The step count of the shard's table, as far as pushes have been given to this replica: to be
 * noted when a pull is sent, for replica_take(). */
uint64_t replica_n_pushes(const struct replica *r, uint32_t shard, uint32_t table) ON_SHARD;

/* One shard's answer to a section with state: the rows of keys[numbers[0 .. n)] are held from now on.
 * The first answer of a table says where its count stands. `n_pushes`: when the pull was sent.
 * PS_ECOUNT: it cannot be read; PS_ESEQ: the shard's count is another, so somebody else has pushed,
 * or it has lost pushes; -ENOMEM. *ret_flags: SECTION_STATE_LIMITED. */
int replica_take(struct replica *r, const struct ps_pull_section *section, uint64_t n_pushes,
                 uint32_t shard, const uint32_t *numbers, uint32_t n, const uint8_t *values,
                 size_t value_bytes, uint8_t *ret_flags) ON_SHARD MUST_CHECK;

/* Fills the dsts, in the sections' codecs. All rows are held. */
int replica_read(struct replica *r, const struct ps_pull_section *sections, uint32_t n,
                 struct err *err) ON_SHARD MUST_CHECK;

/* One shard's push, with the store's numbers of tables. What the shard refuses is refused here, too:
 * no error. *ret_n_versions: by how much it raises the server's version (struct ps_tap).
 * *ret_left_out: rows of it that are not held. -ENOMEM. */
int replica_push(struct replica *r, uint32_t shard, const struct push *push,
                 uint64_t *ret_n_versions, uint64_t *ret_left_out) ON_SHARD MUST_CHECK;

/* Has this key of the table been held before, and gone? Rarely true of one that was not. */
bool replica_had(const struct replica *r, uint32_t table, uint64_t key);

uint64_t replica_n_rows(const struct replica *r) ON_SHARD;
/* Of rows, what keeps them included. */
uint64_t replica_bytes(const struct replica *r) ON_SHARD;

#endif
