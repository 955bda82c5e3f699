/*
 * The blocks of a cache of parsed rows. Each record that is handed out is sound, can be added to a
 * batch, and is the same sample when it is put and added again.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/disk.h"
#include "worker/data/cache_read.h"
#include "worker/data/cache_write.h"

#define FOLDER "cache"
#define SOURCE "/proc/self/exe" /* any file that does not change */

enum { N_NUMERIC = 2, N_FIELDS = 3 };

static struct cache_key key_of(const struct crash_files *disk)
{
    return (struct cache_key){ .path = FOLDER "/log.0.rows",
                               .files = &disk->ops,
                               .fingerprint = 7,
                               .n_numeric = N_NUMERIC,
                               .n_fields = N_FIELDS };
}

static void must(int status)
{
    assert(status == 0);
}

static void check_row(const struct record *r, struct batch *a, struct batch *b)
{
    struct buf again = { 0 };
    const struct record *second;

    batch_clear(a);
    batch_clear(b);
    must(record_add(r, a));
    assert(a->n == 1 && a->starts[0] == 0 && a->starts[N_FIELDS] == a->n_keys);
    for (uint32_t f = 0; f < N_FIELDS; f++)
        assert(a->starts[f + 1] >= a->starts[f]);
    must(record_put_row(&again, a, r->text_bytes));
    second = (const struct record *)(const void *)buf_front(&again);
    assert(record_is_sound(second, buf_len(&again), N_NUMERIC, N_FIELDS));
    must(record_add(second, b));
    assert(a->n_keys == b->n_keys);
    assert(!a->n_keys || memcmp(a->keys, b->keys, a->n_keys * sizeof *a->keys) == 0);
    assert(memcmp(a->starts, b->starts, (N_FIELDS + 1) * sizeof *a->starts) == 0);
    assert(memcmp(a->numeric, b->numeric, N_NUMERIC * sizeof *a->numeric) == 0);
    buf_deinit(&again);
}

static void check_record(const struct record *r, struct batch *a, struct batch *b)
{
    assert(record_is_sound(r, r->n_bytes, N_NUMERIC, N_FIELDS));
    if (r->kind == RECORD_ROW || r->kind == RECORD_BAGS)
        check_row(r, a, b);
    else
        assert(strlen(record_sentence(r)) < r->n_bytes);
}

static void write_file(struct crash_files *disk, const struct cache_key *key,
                       const uint8_t *bytes, size_t n_bytes)
{
    uint8_t header[CACHE_KEY_HEADER_BYTES];
    int fd;

    cache_key_header(key, header);
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
    struct cache_key key = key_of(&disk);
    const struct record *record = NULL;
    struct cache_read *c;
    struct err err = { 0 };
    int status;

    crash_files_init(&disk);
    must(batch_init(&a, 1, N_NUMERIC, N_FIELDS));
    must(batch_init(&b, 1, N_NUMERIC, N_FIELDS));
    write_file(&disk, &key, bytes, n_bytes);
    must(cache_read_open(&key, &c, &err));
    do {
        status = cache_read_next(c, &record, &err);
        assert(status == 0 || (err.text[0] && status == PS_ECORRUPT));
        if (!status && record)
            check_record(record, &a, &b);
    } while (!status && record);
    cache_read_close(c);
    batch_deinit(&a);
    batch_deinit(&b);
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

/* --- seeds --- */

static void put_rows(struct buf *room, uint32_t n, uint32_t n_keys)
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
        must(record_put_row(room, &b, i * 30));
    }
    batch_deinit(&b);
}

bool harness_seed(uint32_t i, struct buf *out)
{
    struct crash_files disk;
    struct cache_key key = key_of(&disk);
    const struct crash_inode *inode;
    struct cache_write *w;
    struct stat st;
    struct err err;

    if (i >= 4)
        return false;
    crash_files_init(&disk);
    must(stat(SOURCE, &st));
    key.size_bytes = (uint64_t)st.st_size;
    key.changed_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    must(cache_write_open(&key, FOLDER, &w, &err));
    put_rows(cache_write_room(w), i * 4, i);
    must(record_put_refusal(cache_write_room(w), RECORD_MALFORMED, 3, "no", 99));
    must(cache_write_told(w, 120, &err));
    must(cache_write_finish(w, 150, SOURCE, &err));
    inode = crash_files_at(&disk, key.path);
    assert(inode);
    harness_put(out, inode->bytes + CACHE_KEY_HEADER_BYTES,
                inode->n_bytes - CACHE_KEY_HEADER_BYTES);
    crash_files_deinit(&disk);
    return true;
}
