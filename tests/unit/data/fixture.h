/*
 * What the tests of this room share: a folder of their own for files, and schemas in a line.
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

static inline void fixture_folder_new(struct fixture_folder *f)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(f->path, sizeof f->path, "%s/psd-data-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->path));
}

/* The folder and the files in it; none of the tests makes folders two deep. */
static inline void fixture_folder_free(struct fixture_folder *f)
{
    char path[FIXTURE_PATH_MAX + 256];
    struct dirent *entry;
    DIR *dir = opendir(f->path);

    while (dir && (entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", f->path, entry->d_name);
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            remove(path);
    }
    closedir(dir);
    rmdir(f->path);
}

static inline void fixture_path(const struct fixture_folder *f, const char *name,
                                char path[FIXTURE_PATH_MAX])
{
    size_t n = strlen(f->path);

    assert_true(n + strlen(name) + 2 <= FIXTURE_PATH_MAX);
    memcpy(path, f->path, n);
    path[n] = '/';
    strcpy(path + n + 1, name);
}

static inline void fixture_write(const struct fixture_folder *f, const char *name,
                                 const void *bytes, size_t n_bytes, char path[FIXTURE_PATH_MAX])
{
    FILE *file;

    fixture_path(f, name, path);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void fixture_write_text(const struct fixture_folder *f, const char *name,
                                      const char *text, char path[FIXTURE_PATH_MAX])
{
    fixture_write(f, name, text, strlen(text), path);
}

/* One zstd frame; the caller's to free. */
static inline void *fixture_zstd(const void *bytes, size_t n_bytes, size_t *ret_n_bytes)
{
    size_t cap = ZSTD_compressBound(n_bytes);
    void *packed = memory_alloc(cap);

    *ret_n_bytes = ZSTD_compress(packed, cap, bytes, n_bytes, 1);
    assert_false(ZSTD_isError(*ret_n_bytes));
    return packed;
}

/* One gzip member; the caller's to free. */
static inline void *fixture_gzip(const void *bytes, size_t n_bytes, size_t *ret_n_bytes)
{
    size_t cap = n_bytes + n_bytes / 10 + 100;
    uint8_t *packed = memory_alloc(cap);
    z_stream z = { 0 };

    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)bytes;
    z.avail_in = (uInt)n_bytes;
    z.next_out = packed;
    z.avail_out = (uInt)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    *ret_n_bytes = cap - z.avail_out;
    deflateEnd(&z);
    return packed;
}

static inline struct schema *fixture_schema(const struct schema_text *text,
                                            const char *first_line)
{
    struct schema *s = NULL;
    struct err err = { 0 };

    if (schema_new(text, first_line, &s, &err))
        fail_msg("schema: %s", err.text);
    return s;
}

static inline uint64_t fixture_seed(const char *test)
{
    print_message("%s: ", test);
    return hash_mix(seed_by_the_clock());
}

/* In 0 .. n - 1; the counter moves. */
static inline uint32_t fixture_draw(uint64_t seed, uint64_t *counter, uint32_t n)
{
    return (uint32_t)((hash_mix2(seed, (*counter)++) >> 32) * n >> 32);
}

static inline void fixture_assert_says(const struct err *err, const char *part)
{
    if (!strstr(err->text, part))
        fail_msg("\"%s\" does not say \"%s\"", err->text, part);
}

#endif
