/*
 * Passes with a cache against passes without: the same batches, counts and sentences, whatever
 * state the cache is in. The cache lies on the disk in memory of tests/support, the text in a
 * folder.
 */
#ifndef TESTS_UNIT_DATA_CACHE_BENCH_H
#define TESTS_UNIT_DATA_CACHE_BENCH_H

#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "tests/support/crash_files.h"
#include "worker/data/data_loader.h"
#include "worker/data/loader_pass.h"

struct cache_bench {
    struct fixture_folder folder;
    struct schema *schema;
    struct crash_files disk;
    char names[2][FIXTURE_PATH_MAX];
    char *paths[2];
    struct data_loader_options options;
    uint32_t n_notices;
    char notice[400]; /* the last */
};

/* All that a pass gives. */
struct outcome {
    int status;
    char text[256];
    uint64_t digest, rows, bad_rows, bytes, cached;
};

/* n rows; every bad-th is malformed, and with bags c may be empty or have two parts. */
void write_log(struct cache_bench *b, uint32_t file, uint32_t n, uint32_t bad,
               const char *salt);

void cache_bench_new(struct cache_bench *b, const char *inner_separator, uint32_t bad);
void cache_bench_free(struct cache_bench *b);
struct outcome run(const struct data_loader_options *options);
struct outcome run_plain(const struct cache_bench *b);
void assert_same(const struct outcome *a, const struct outcome *b);

/* The same as without a cache; returns how many rows the cache gave. */
uint64_t run_same(struct cache_bench *b);

/* The cache of a file. */
const char *cache_of(const struct cache_bench *b, uint32_t file);

uint32_t n_files(const struct cache_bench *b);

#endif
