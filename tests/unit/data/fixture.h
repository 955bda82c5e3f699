/*
 * What the tests of this folder share: a folder of their own for files, and schemas in a line.
 */
#ifndef TESTS_UNIT_DATA_FIXTURE_H
#define TESTS_UNIT_DATA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"
#include "worker/data/schema.h"

#define FIXTURE_PATH_MAX 512u

struct fixture_folder {
    char path[FIXTURE_PATH_MAX / 2];
};

void fixture_folder_new(struct fixture_folder *f);

/* The folder and the files in it; none of the tests makes folders two deep. */
void fixture_folder_free(struct fixture_folder *f);

void fixture_path(const struct fixture_folder *f, const char *name,
                  char path[FIXTURE_PATH_MAX]);
void fixture_write(const struct fixture_folder *f, const char *name, const void *bytes,
                   size_t n_bytes, char path[FIXTURE_PATH_MAX]);
void fixture_write_text(const struct fixture_folder *f, const char *name, const char *text,
                        char path[FIXTURE_PATH_MAX]);

/* One zstd frame; the caller's to free. */
void *fixture_zstd(const void *bytes, size_t n_bytes, size_t *ret_n_bytes);

/* One gzip member; the caller's to free. */
void *fixture_gzip(const void *bytes, size_t n_bytes, size_t *ret_n_bytes);

struct schema *fixture_schema(const struct schema_text *text, const char *first_line);
uint64_t fixture_seed(const char *test);

/* In 0 .. n - 1; the counter moves. */
static inline uint32_t fixture_draw(uint64_t seed, uint64_t *counter, uint32_t n)
{
    return (uint32_t)((hash_mix2(seed, (*counter)++) >> 32) * n >> 32);
}

void fixture_assert_says(const struct err *err, const char *part);

#endif
