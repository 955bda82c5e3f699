/* Shards with known rows, and what the store's tests do with them again and again. */
#ifndef TESTS_UNIT_CHECKPOINT_FIXTURE_H
#define TESTS_UNIT_CHECKPOINT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "proto/placement.h"
#include "server/checkpoint/loader.h"
#include "server/checkpoint/shard_file_writer.h"
#include "server/core/optimizer.h"
#include "tests/support/crash_files.h"

#define N_SHARDS_MAX 8u
#define DATA_DIR "data"

struct table_spec fixture_spec(uint32_t i);
struct shard *fixture_shard(uint32_t index, uint32_t n_shards);

/* `salt` makes states differ. Row i of a sparse table has a scattered key; of the dense one
 * it is block i. */
void fixture_fill(struct shard *shard, uint32_t n_sparse, uint64_t salt);

void fixture_new(struct shard **shards, uint32_t n_shards, uint32_t n_sparse, uint64_t salt);
void fixture_free(struct shard **shards, uint32_t n_shards);

/* A manifest in the making: its number comes from checkpoint_next(). */
struct manifest *fixture_manifest(uint32_t node, uint32_t n_nodes, uint32_t n_shards);

struct shard_file_writer_config fixture_config(const struct file_ops *files,
                                               const struct manifest *m, uint32_t i);
int fixture_write(const struct file_ops *files, struct manifest *m, uint32_t i,
                  struct shard *shard, struct err *err);

/* One checkpoint of all shards; the first failure ends it, as in psd. */
int fixture_save(const struct file_ops *files, struct shard **shards, uint32_t n_shards,
                 uint32_t keep, uint64_t *ret_number);

void fixture_assert_equal(struct shard **a, uint32_t n_a, struct shard **b, uint32_t n_b);

/* Of the newest checkpoint, whole, the rows that are the shard's. */
int fixture_load_shard(const struct file_ops *files, struct shard *shard, struct err *err);

/* Loads the newest checkpoint onto n_shards new shards. */
int fixture_load(const struct file_ops *files, struct shard **ret_shards, uint32_t n_shards);

bool fixture_is_newest(struct crash_files *c, struct shard **shards, uint32_t n_shards);

#endif
