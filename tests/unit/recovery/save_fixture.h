/* A shard that is pushed to, and checkpoints of it on a disk in memory. */
#ifndef TESTS_UNIT_RECOVERY_SAVE_FIXTURE_H
#define TESTS_UNIT_RECOVERY_SAVE_FIXTURE_H

#include <errno.h>

#include "server/checkpoint/loader.h"
#include "server/checkpoint/shard_file_writer.h"
#include "tests/support/crash_files.h"
#include "tests/unit/core/events_fixture.h"

enum { DIM = 8, N_KEYS = 5000 };

#define DATA_DIR "data"

static const struct shard_file_identity identity = { .n_shards = 1, .map_id = 77 };

struct bed {
    struct crash_files c;
    struct shard *s;
    struct worker *worker;
    struct table_spec spec;
    uint32_t table;
    uint64_t clock;
    struct manifest *m; /* of the last checkpoint */
    uint64_t first;     /* of it, and its through: one more with each */
    uint64_t firsts[1]; /* as committed */
};

void bed_init(struct bed *b);
void bed_deinit(struct bed *b);

/* One gradient for each of n keys from `first` on. */
void bed_push(struct bed *b, uint64_t first, uint32_t n);

/* A number for the next checkpoint; base 0: full. */
int bed_next(struct bed *b, uint64_t base, struct err *err);

struct shard_file_writer_config bed_config(struct bed *b);
int bed_try_save(struct bed *b, uint64_t base, uint32_t keep, struct err *err);

/* Its number. */
uint64_t bed_save(struct bed *b, uint64_t base, uint32_t keep);

/* That restore point, into a new shard; *ret is the caller's, also on failure. */
int bed_load(struct bed *b, const struct checkpoint *c, struct shard **ret,
             struct loader_facts *ret_facts, struct err *err);

/* The newest one is number `want`, and holds what the shard does. */
void bed_assert_newest(struct bed *b, uint64_t want);

#endif
