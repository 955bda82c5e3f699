/* Shards, workers and encoded sections, as the tests of server/core need
 * them again and again. */
#ifndef TESTS_UNIT_CORE_FIXTURE_H
#define TESTS_UNIT_CORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "proto/placement.h"
#include "server/core/optimizer.h"
#include "server/core/restore.h"
#include "server/core/shard.h"
#include "tests/support/seed.h"

#define LEASE_MS 10000u
#define JOIN_MS 60000u

/* A random number that is a pure function of a seed and a place. */
struct dice {
    uint64_t seed, n;
};

static inline uint64_t roll(struct dice *d, uint64_t n_sides)
{
    return hash_mix2(d->seed, d->n++) % n_sides;
}

/* In [-1, 1). */
static inline float roll_float(struct dice *d)
{
    return 2 * hash_unit(hash_mix2(d->seed, d->n++)) - 1;
}

struct dice dice_of_this_run(const char *test);
struct table_spec sparse_spec(const char *name, uint32_t dim, enum table_spec_optim optim);
struct table_spec dense_spec(const char *name, uint32_t dim, uint64_t n_floats,
                             enum table_spec_optim optim);
struct shard *make_shard(uint32_t index, uint32_t n_shards, uint64_t memory_max_bytes);
uint32_t make_table(struct shard *s, const struct table_spec *spec);
struct worker *join_at(struct shard *s, enum table_spec_mode mode, uint32_t bound,
                       uint32_t rank, uint32_t n_workers, uint64_t incarnation,
                       uint64_t now_ms);
struct worker *join(struct shard *s, enum table_spec_mode mode, uint32_t bound, uint32_t rank,
                    uint32_t n_workers);
struct section *add_section(struct push *push, uint32_t table, enum section_op op,
                            enum codec_id codec_id, uint32_t dim, const uint64_t *keys,
                            uint32_t n_keys, const float *values);
struct section *add_gradient(struct push *push, uint32_t table, uint32_t dim,
                             const uint64_t *keys, uint32_t n_keys, const float *values);
/* SECTION_GRADIENT_AT, behind each gradient the weights that it is of. */
struct section *add_gradient_at(struct push *push, uint32_t table, enum codec_id codec_id,
                                uint32_t dim, const uint64_t *keys, uint32_t n_keys,
                                const float *values, const float *then,
                                struct section_delay delay);
struct section *add_assign(struct push *push, uint32_t table, uint32_t dim,
                           const uint64_t *keys, uint32_t n_keys, const float *values);
void free_push(struct push *push);

/* The worker's next push, without sections. Zeroed memory; free_push(). */
struct push *next_push(const struct worker *w, uint64_t clock);

struct pull *make_pull(uint64_t clock, uint32_t table, const uint64_t *keys, uint32_t n_keys);
void free_pull(struct pull *pull);

/* Sends and frees the push; it must be accepted. */
struct shard_push_result must_push(struct shard *s, struct worker *w, struct push *push);

/* Sends and frees the push, whatever becomes of it. */
struct shard_push_result try_push(struct shard *s, struct worker *w, struct push *push);

/* May a pull of this clock be answered? */
bool ready(struct shard *s, const struct worker *w, uint64_t clock, uint32_t table);

/* Weights as any reader gets them, in fp32. */
void read_weights(struct shard *s, uint32_t table, const uint64_t *keys, uint32_t n_keys,
                  float *dst);

/* A shard whose table 0, of UNIT_DIM columns, has weights that are minus the sum of their gradients. */
#define UNIT_DIM 5u

struct table_spec unit_spec(void);
struct shard *unit_shard(void);

/* A gradient of g in each column of key 1 of table 0. */
struct push *unit_push(const struct worker *w, uint64_t clock, uint32_t n_samples, float g);

/* Of a row's first column. */
float unit_weight(struct shard *s, uint64_t key);

/* The whole row, state included, or NULL. Borrowed. */
const struct row *find_row(struct shard *s, uint32_t table, uint64_t key);

void assert_floats_equal(const float *got, const float *want, size_t n);

#endif
