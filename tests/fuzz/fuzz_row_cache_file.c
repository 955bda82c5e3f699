/*
 * The blocks of a cache of parsed rows. Each record that is handed out is sound, can be added to a
 * batch, and is the same sample when it is put and added again.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/disk.h"
#include "worker/data/row_cache_file.h"

#define FOLDER "cache"
#define SOURCE "/proc/self/exe" /* any file that does not change */

enum { N_NUMERIC = 2, N_FIELDS = 3 };

static struct row_cache_file_key key_of(const struct crash_files *disk)
{
    return (struct row_cache_file_key){ .path = FOLDER "/log.0.rows",
                                        .files = &disk->ops,
                                        .fingerprint = 7,
                                        .n_floats = N_NUMERIC,
                                        .n_fields = N_FIELDS };
}

static void must(int status)
{
    assert(status == 0);
}

static void check_row(const struct parsed_row *r, struct batch *a, struct batch *b)
{
    struct bytes again = { 0 };
    const struct parsed_row *second;

    batch_clear(a);
    batch_clear(b);
    must(parsed_row_add(r, a));
    assert(a->n == 1 && a->starts[0] == 0 && a->starts[N_FIELDS] == a->n_keys);
    for (uint32_t f = 0; f < N_FIELDS; f++)
        assert(a->starts[f + 1] >= a->starts[f]);
    must(parsed_row_put_row(&again, a, r->text_bytes));
    second = (const struct parsed_row *)(const void *)bytes_front(&again);
    assert(parsed_row_is_sound(second, bytes_len(&again), N_NUMERIC, N_FIELDS));
    must(parsed_row_add(second, b));
    assert(a->n_keys == b->n_keys);
    assert(!a->n_keys || memcmp(a->keys, b->keys, a->n_keys * sizeof *a->keys) == 0);
    assert(memcmp(a->starts, b->starts, (N_FIELDS + 1) * sizeof *a->starts) == 0);
    assert(memcmp(a->numeric, b->numeric, N_NUMERIC * sizeof *a->numeric) == 0);
    bytes_deinit(&again);
}

static void check_record(const struct parsed_row *r, struct batch *a, struct batch *b)
{
    assert(parsed_row_is_sound(r, r->n_bytes, N_NUMERIC, N_FIELDS));
    if (r->kind == PARSED_ROW_ROW || r->kind == PARSED_ROW_BAGS)
        check_row(r, a, b);
    else
        assert(strlen(parsed_row_sentence(r)) < r->n_bytes);
}

static void write_file(struct crash_files *disk, const struct row_cache_file_key *key,
                       const uint8_t *bytes, size_t n_bytes)
{
    uint8_t header[ROW_CACHE_FILE_HEADER_BYTES];
    int fd;

    row_cache_file_header(key, header);
    must(disk->ops.mkdir(disk, FOLDER));
    must(disk->ops.create(disk, key->path, &fd));
    must(disk->ops.write_all(disk, fd, header, sizeof header));
    must(disk->ops.write_all(disk, fd, bytes, n_bytes));
    must(disk->ops.close(disk, fd));
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct batch a, b;
    struct crash_files disk;
    struct row_cache_file_key key = key_of(&disk);
    const struct parsed_row *record = NULL;
    struct row_cache_file_reader *c;
    struct err err = { 0 };
    int status;

    crash_files_init(&disk);
    must(batch_init(&a, 1, N_NUMERIC, N_FIELDS));
    must(batch_init(&b, 1, N_NUMERIC, N_FIELDS));
    write_file(&disk, &key, bytes, n_bytes);
    must(row_cache_file_open(&key, &c, &err));
    do {
        status = row_cache_file_next(c, &record, &err);
        assert(status == 0 || (err.text[0] && status == PS_ECORRUPT));
        if (!status && record)
            check_record(record, &a, &b);
    } while (!status && record);
    row_cache_file_close(c);
    batch_deinit(&a);
    batch_deinit(&b);
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

/* --- seeds --- */

static void put_rows(struct bytes *out, uint32_t n, uint32_t n_keys)
{
    struct batch b;

    must(batch_init(&b, 1, N_NUMERIC, N_FIELDS));
    must(batch_reserve_keys(&b, n_keys + N_FIELDS));
    for (uint32_t i = 0; i < n; i++) {
        batch_clear(&b);
        b.n = 1;
        b.label[0] = 1;
        b.numeric[0] = b.numeric[1] = 0.5f;
        b.n_keys = i % 2 ? N_FIELDS : n_keys;
        for (uint32_t f = 0; f < N_FIELDS; f++)
            b.starts[f + 1] = i % 2 ? f + 1 : f + 1 < N_FIELDS ? 0 : n_keys;
        for (uint32_t k = 0; k < b.n_keys; k++)
            b.keys[k] = k + i;
        must(parsed_row_put_row(out, &b, i * 30));
    }
    batch_deinit(&b);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    struct crash_files disk;
    struct row_cache_file_key key = key_of(&disk);
    const struct crash_inode *inode;
    struct row_cache_file_writer *w;
    struct stat st;
    struct err err;

    if (i >= 4)
        return false;
    crash_files_init(&disk);
    must(stat(SOURCE, &st));
    key.size_bytes = (uint64_t)st.st_size;
    key.changed_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    must(row_cache_file_create(&key, FOLDER, &w, &err));
    put_rows(row_cache_file_space(w), i * 4, i);
    must(parsed_row_put_refusal(row_cache_file_space(w), PARSED_ROW_MALFORMED, 3, "no", 99));
    must(row_cache_file_row_added(w, 120, &err));
    must(row_cache_file_commit(w, 150, SOURCE, &err));
    inode = crash_files_at(&disk, key.path);
    assert(inode);
    harness_put(out, inode->bytes + ROW_CACHE_FILE_HEADER_BYTES,
                inode->n_bytes - ROW_CACHE_FILE_HEADER_BYTES);
    crash_files_deinit(&disk);
    return true;
}
