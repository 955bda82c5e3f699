/*
 * One shard's file of a checkpoint. What is handed out before the end of the file adds up to what the
 * file says of itself: tables, rows, bytes.
 */
#include "tests/unit/checkpoint/fixture.h"

#include "server/checkpoint/shard_file_reader.h"
#include "tests/fuzz/disk.h"

static void check_table(const struct shard_file_table *t)
{
    struct err why = { 0 };

    assert(table_spec_check(&t->spec, &why) == 0);
    assert(memchr(t->spec.name, '\0', sizeof t->spec.name));
    assert(t->spec.kind != TABLE_SPEC_DENSE || t->n_rows <= table_spec_n_blocks(&t->spec));
}

/* Every byte of the chunk is looked at. */
static void check_rows(const struct shard_file_reader *r,
                       const struct shard_file_reader_chunk *rows, uint64_t *digest)
{
    const struct shard_file_table *t = &r->tables[rows->table];
    uint64_t key, stamp;

    assert(rows->table < r->header.n_tables && rows->n_items > 0);
    assert(rows->n_bytes == rows->n_items * rows->item_bytes);
    for (uint32_t i = 0; i < rows->n_items; i++) {
        const void *payload = shard_file_reader_row(rows, i, &key, &stamp);

        harness_digest(digest, payload, t->payload_bytes);
        assert(t->spec.kind != TABLE_SPEC_DENSE || key < table_spec_n_blocks(&t->spec));
    }
}

static void read_pieces(struct shard_file_reader *r, size_t n_bytes, const struct err *err)
{
    uint64_t n[SHARD_FILE_WHAT_END] = { 0 }, state_bytes = 0, digest = 0;
    struct shard_file_reader_chunk piece;
    int status;

    for (uint32_t i = 0; i < r->header.n_tables; i++)
        if (!r->tables[i].n_dropped)
            check_table(&r->tables[i]);
    while ((status = shard_file_reader_next(r, &piece)) > 0) {
        assert(piece.what < SHARD_FILE_WHAT_END);
        n[piece.what] += piece.n_items;
        if (piece.what == SHARD_FILE_ROWS)
            check_rows(r, &piece, &digest);
        else
            harness_digest(&digest, piece.bytes, piece.n_bytes);
        state_bytes += piece.what == SHARD_FILE_STATE ? piece.n_bytes : 0;
    }
    if (status) {
        assert(err->text[0]);
        return;
    }
    assert(r->facts.n_rows == n[SHARD_FILE_ROWS] && r->facts.n_gone == n[SHARD_FILE_GONE]);
    assert(state_bytes == r->header.state_bytes);
    assert(r->facts.n_bytes == n_bytes);
    assert(r->facts.version == r->header.version);
    assert(r->facts.first <= r->facts.through);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct crash_files disk;
    struct shard_file_reader r;
    struct err err = { 0 };
    int fd;

    crash_files_init(&disk);
    assert_int_equal(disk.ops.create(&disk, "part", &fd), 0);
    assert_int_equal(disk.ops.write_all(&disk, fd, bytes, n_bytes), 0);
    assert_int_equal(disk.ops.close(&disk, fd), 0);
    if (shard_file_reader_open(&r, &disk.ops, "part", &err) == 0) {
        read_pieces(&r, n_bytes, &err);
        shard_file_reader_close(&r);
    } else {
        assert(err.text[0]);
    }
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    const uint32_t n_rows[] = { 0, 1, 20, 100 };
    struct crash_files disk;
    struct shard *shard;
    char path[CRASH_PATH_MAX];
    const struct crash_inode *inode;
    uint64_t number;

    if (i >= COUNT_OF(n_rows))
        return false;
    crash_files_init(&disk);
    enter_shard();
    fixture_new(&shard, 1, n_rows[i], i);
    assert_int_equal(fixture_save(&disk.ops, &shard, 1, 1, &number), 0);
    snprintf(path, sizeof path, DATA_DIR "/checkpoints/%020llu/shard-000.psc",
             (unsigned long long)number);
    inode = crash_files_at(&disk, path);
    assert(inode);
    harness_put(out, inode->bytes, inode->n_bytes);
    shard_free(shard);
    crash_files_deinit(&disk);
    return true;
}
