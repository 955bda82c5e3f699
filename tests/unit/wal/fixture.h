/* Logs on a disk in memory, made of records that a seed gives, and held to what was appended. */
#ifndef TESTS_UNIT_WAL_FIXTURE_H
#define TESTS_UNIT_WAL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "server/core/optimizer.h"
#include "server/wal/wal_writer.h"
#include "tests/support/crash_files.h"

#define LOG_DIR "data"

static const struct wal_identity fixture_identity = {
    .node = 2, .shard = 5, .n_shards = 8, .map_id = 99
};

/* What a record points to. */
struct fixture_storage {
    struct push push;
    struct table_spec spec;
    struct membership_join join;
    struct learning_report learned;
    uint64_t keys[300];
    uint8_t values[600];
};

/* Record of this seed, of any type; the same bytes each time. */
struct wal_record fixture_record(struct fixture_storage *storage, uint64_t seed);

/* Is it record `number`, as fixture_record() of the seed made it? */
bool fixture_is(const struct wal_record *got, uint64_t number, uint64_t seed);

/* A log with its disk. Record n is fixture_record(n), unless `salt` says otherwise. */
struct fixture_log {
    struct wal_queue queue;
    struct wal_writer *writer;
    uint64_t now_ms, due_ms;
};

static inline struct wal_writer_config fixture_config(const struct file_ops *files,
                                                      enum wal_durability durability)
{
    return (struct wal_writer_config){ .files = files,
                                       .dir = LOG_DIR,
                                       .identity = fixture_identity,
                                       .durability = durability,
                                       .zstd = WAL_ZSTD_WHERE_IT_PAYS,
                                       .interval_ms = 1000,
                                       .retry_ms = 500,
                                       .segment_bytes = 6000 };
}

/* What is there, record for record, from `from` on; the records must be those of their numbers. */
int fixture_read(const struct file_ops *files, uint64_t from, struct wal_end *ret);

int fixture_open(struct fixture_log *l, const struct wal_writer_config *config,
                 const struct wal_end *end);

/* Reads what is there, and opens behind it. */
int fixture_reopen(struct fixture_log *l, const struct wal_writer_config *config);

void fixture_free(struct fixture_log *l);

/* The next record, numbered as it comes; its seed is its number. */
int fixture_append(struct fixture_log *l);

void fixture_work(struct fixture_log *l);

#endif
