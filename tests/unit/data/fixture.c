#include "tests/unit/data/fixture.h"

void fixture_folder_new(struct fixture_folder *f)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(f->path, sizeof f->path, "%s/psd-data-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->path));
}

void fixture_folder_free(struct fixture_folder *f)
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

void fixture_path(const struct fixture_folder *f, const char *name, char path[FIXTURE_PATH_MAX])
{
    size_t n = strlen(f->path);

    assert_true(n + strlen(name) + 2 <= FIXTURE_PATH_MAX);
    memcpy(path, f->path, n);
    path[n] = '/';
    strcpy(path + n + 1, name);
}

void fixture_write(const struct fixture_folder *f, const char *name, const void *bytes,
                   size_t n_bytes, char path[FIXTURE_PATH_MAX])
{
    FILE *file;

    fixture_path(f, name, path);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

void fixture_write_text(const struct fixture_folder *f, const char *name, const char *text,
                        char path[FIXTURE_PATH_MAX])
{
    fixture_write(f, name, text, strlen(text), path);
}

void *fixture_zstd(const void *bytes, size_t n_bytes, size_t *ret_n_bytes)
{
    size_t cap = ZSTD_compressBound(n_bytes);
    void *packed = memory_alloc(cap);

    *ret_n_bytes = ZSTD_compress(packed, cap, bytes, n_bytes, 1);
    assert_false(ZSTD_isError(*ret_n_bytes));
    return packed;
}

void *fixture_gzip(const void *bytes, size_t n_bytes, size_t *ret_n_bytes)
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

struct schema *fixture_schema(const struct schema_text *text, const char *first_line)
{
    struct schema *s = NULL;
    struct err err = { 0 };

    if (schema_new(text, first_line, &s, &err))
        fail_msg("schema: %s", err.text);
    return s;
}

uint64_t fixture_seed(const char *test)
{
    print_message("%s: ", test);
    return hash_mix(seed_by_the_clock());
}

void fixture_assert_says(const struct err *err, const char *part)
{
    if (!strstr(err->text, part))
        fail_msg("\"%s\" does not say \"%s\"", err->text, part);
}
