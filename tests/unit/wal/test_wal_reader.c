/* A log of which any byte may be anything. */
#include "tests/support/share.h"
#include "tests/unit/wal/fixture.h"

#define N_RECORDS 40u

/* A closed log of three or more segments, a block for each few records. */
static void make(struct crash_files *c, enum wal_durability durability)
{
    struct wal_writer_config config = fixture_config(&c->ops, durability);
    struct fixture_log l;

    crash_files_init(c);
    config.segment_bytes = 1800;
    assert_int_equal(fixture_reopen(&l, &config), 0);
    while (l.queue.next_number <= N_RECORDS) {
        assert_int_equal(fixture_append(&l), 0);
        if (l.queue.next_number % 3 == 0)
            fixture_work(&l);
    }
    fixture_work(&l);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    assert_true(wal_writer_progress(l.writer)->n_segments >= 3);
    fixture_free(&l);
}

static struct crash_inode *segment_at(struct crash_files *c, size_t i, size_t *ret_n)
{
    struct wal_segments all;
    char path[WAL_PATH_MAX];
    struct crash_inode *file;

    assert_int_equal(wal_segment_list(&c->ops, LOG_DIR, &all, NULL), 0);
    *ret_n = all.n;
    assert_int_equal(wal_segment_path(LOG_DIR, all.firsts[i], path, NULL), 0);
    file = crash_files_at(c, path);
    free(all.firsts);
    return file;
}

/* fixture_read() holds that what is read is a prefix of what was written. */
static struct wal_end read_all(struct crash_files *c)
{
    struct wal_end end = { 0 };
    int status = fixture_read(&c->ops, 1, &end);

    assert_true(status == 0 || status == PS_ECLUSTER);
    assert_int_equal(crash_files_n_open(c), 0);
    c->n_opens = 0; /* thousands of reads: the table of opens begins anew */
    return end;
}

static void flip(struct crash_files *c, struct crash_inode *file, size_t i, uint8_t mask,
                 size_t segment, size_t n_segments)
{
    struct wal_end end;

    file->bytes[i] ^= mask;
    end = read_all(c);
    file->bytes[i] ^= mask;
    if (i < WAL_SEGMENT_HEADER_BYTES) { /* its blocks can be read without it */
        if (end.verdict != WAL_CLEAN || end.n_headers != 1 || end.last != N_RECORDS)
            fail_msg("segment %zu, byte %zu, mask %x: %s", segment, i, mask, end.text);
        assert_true(strstr(end.header_text, ".psl") && strstr(end.header_text, "byte 0 of"));
        return;
    }
    assert_int_equal(end.n_headers, 0);
    /* Seen; and where it is not the sign of the log's end itself, known for damage. */
    if (end.verdict == WAL_CLEAN)
        fail_msg("segment %zu, byte %zu, mask %x: not seen", segment, i, mask);
    if (segment + 1 < n_segments || i + WAL_BLOCK_HEADER_BYTES < file->n_bytes) {
        if (end.verdict != WAL_DAMAGED)
            fail_msg("segment %zu, byte %zu, mask %x: %s", segment, i, mask, end.text);
        assert_true(end.last < N_RECORDS);
        assert_true(strstr(end.text, ".psl") && strstr(end.text, "byte "));
    } else {
        assert_int_equal(end.verdict, WAL_TORN);
        assert_int_equal(end.last, N_RECORDS);
    }
}

static void every_flipped_byte_of_a_closed_log_is_damage(void **state)
{
    struct crash_files c;
    size_t n_segments = 1;

    (void)state;
    make(&c, WAL_FSYNC);
    for (size_t s = 0; s < n_segments; s++) {
        struct crash_inode *file = segment_at(&c, s, &n_segments);

        for (size_t i = (size_t)share_first(); i < file->n_bytes; i += (size_t)share_step())
            flip(&c, file, i, (uint8_t)(1u << (i + s) % 8), s, n_segments);
    }
    assert_int_equal(read_all(&c).verdict, WAL_CLEAN);
    crash_files_deinit(&c);
}

/* With more damage than in one field, it may be anybody's log. */
static void a_segment_with_a_damaged_header_of_another_owner_is_not_read(void **state)
{
    static const struct wal_identity other = { .node = 9, .shard = 3, .n_shards = 7 };
    struct crash_files c;
    struct crash_inode *file;
    struct wal_reader *r;
    size_t n;

    (void)state;
    make(&c, WAL_FSYNC);
    file = segment_at(&c, 0, &n);
    file->bytes[64] ^= 1; /* when it was begun */
    assert_int_equal(wal_reader_open(&c.ops, LOG_DIR, &other, 1, &r, NULL), 0);
    assert_int_equal(wal_reader_end(r)->verdict, WAL_DAMAGED);
    wal_reader_free(r);
    assert_int_equal(wal_reader_open(&c.ops, LOG_DIR, NULL, 1, &r, NULL), 0);
    assert_int_equal(wal_reader_identity(r)->map_id, fixture_identity.map_id);
    wal_reader_free(r);
    file->bytes[16] ^= 1;
    assert_int_equal(read_all(&c).verdict, WAL_DAMAGED);
    crash_files_deinit(&c);
}

static void truncation_is_a_torn_tail_in_the_last_segment_and_damage_before_it(void **state)
{
    struct crash_files c;
    size_t n_segments = 1;

    (void)state;
    make(&c, WAL_ASYNC);
    for (size_t s = 0; s < n_segments; s++) {
        struct crash_inode *file = segment_at(&c, s, &n_segments);
        const size_t whole = file->n_bytes;
        uint64_t last = 0;

        for (file->n_bytes = (size_t)share_first(); file->n_bytes < whole;
             file->n_bytes += (size_t)share_step()) {
            struct wal_end end = read_all(&c);

            assert_true(end.last >= last);
            last = end.last;
            if (s + 1 < n_segments) {
                assert_int_equal(end.verdict, WAL_DAMAGED);
            } else {
                assert_true(end.verdict == WAL_TORN || end.verdict == WAL_CLEAN);
                assert_true(end.offset <= file->n_bytes);
            }
        }
        file->n_bytes = whole;
        assert_true(last > 0);
    }
    crash_files_deinit(&c);
}

static void a_missing_segment_is_damage(void **state)
{
    struct crash_files c;
    struct wal_segments all;
    struct wal_end end;
    char path[WAL_PATH_MAX];

    (void)state;
    make(&c, WAL_FSYNC);
    assert_int_equal(wal_segment_list(&c.ops, LOG_DIR, &all, NULL), 0);
    assert_int_equal(wal_segment_path(LOG_DIR, all.firsts[1], path, NULL), 0);
    assert_int_equal(c.ops.unlink(&c, path), 0);
    end = read_all(&c);
    assert_int_equal(end.verdict, WAL_DAMAGED);
    assert_int_equal(end.last, all.firsts[1] - 1);
    assert_non_null(strstr(end.text, "records are missing"));
    assert_int_equal(end.n_unread, all.n - 2);
    free(all.firsts);
    crash_files_deinit(&c);
}

/* Runs of bytes from elsewhere, zeros, noise: whatever comes, the prefix is whole. */
static void random_damage_never_harms_and_never_invents(void **state)
{
    struct crash_files c;
    size_t n_segments;
    uint32_t n_seen = 0;

    (void)state;
    make(&c, WAL_ASYNC);
    (void)segment_at(&c, 0, &n_segments);
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        size_t s = hash_mix2(seed, 1) % n_segments, n, at, from;
        struct crash_inode *file = segment_at(&c, s, &n);
        uint8_t *saved = malloc(file->n_bytes);
        const size_t whole = file->n_bytes;

        memcpy(saved, file->bytes, whole);
        n = 1 + hash_mix2(seed, 2) % 400;
        n = n < whole ? n : whole;
        at = hash_mix2(seed, 3) % (whole - n + 1);
        from = hash_mix2(seed, 4) % (whole - n + 1);
        for (size_t i = 0; i < n; i++)
            file->bytes[at + i] = seed % 3 == 0   ? saved[from + i]
                                  : seed % 3 == 1 ? 0
                                                  : (uint8_t)hash_mix2(seed, i);
        if (seed % 5 == 0)
            file->n_bytes = hash_mix2(seed, 6) % whole;
        n_seen += read_all(&c).verdict != WAL_CLEAN;
        memcpy(file->bytes, saved, whole);
        file->n_bytes = whole;
        free(saved);
    }
    assert_true(n_seen > 1600);
    crash_files_deinit(&c);
}

static void a_damaged_log_is_not_written_to(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = fixture_config(&c.ops, WAL_FSYNC);
    size_t n_segments;

    (void)state;
    make(&c, WAL_FSYNC);
    segment_at(&c, 0, &n_segments)->bytes[200] ^= 1;
    assert_int_equal(fixture_reopen(&l, &config), PS_ECORRUPT);
    fixture_free(&l);
    crash_files_deinit(&c);
}

/* A worker chooses what is in a push: also bytes that are a block elsewhere. */
static void a_block_inside_of_a_push_is_no_block(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    struct wal_end end;
    const struct wal_writer_config config = fixture_config(&c.ops, WAL_FSYNC);
    uint8_t forged[WAL_BLOCK_HEADER_BYTES + 8] = { 0 };
    struct push push = { .seq = 1, .n_sections = 1 };
    struct wal_record r = { .event = { .type = SHARD_EVENT_PUSH,
                                       .push = { { "abc", 0, 1 }, &push, 0 } } };
    struct crash_inode *file;
    size_t n;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(fixture_reopen(&l, &config), 0);
    wal_block_seal_end(forged, 0, 999, 998); /* it knows all but the segment's crc */
    push.sections[0] = (struct section){ .values = forged, .value_bytes = sizeof forged };
    assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&r)), 0);
    (void)wal_queue_append(&l.queue, &r, 0);
    fixture_work(&l);
    file = segment_at(&c, 0, &n);
    file->bytes[WAL_SEGMENT_HEADER_BYTES] ^= 1; /* the block around it is torn */
    assert_int_equal(fixture_read(&c.ops, 1, &end), 0);
    assert_int_equal(end.verdict, WAL_TORN);
    fixture_free(&l);
    crash_files_deinit(&c);
}

/* The place of the block that record `number` is in. */
static size_t block_of(struct crash_files *c, uint64_t number)
{
    const struct wal_record *record = NULL;
    struct wal_reader *r;
    char where[WAL_PATH_MAX + 32];
    unsigned long at = 0;

    assert_int_equal(wal_reader_open(&c->ops, LOG_DIR, NULL, number, &r, NULL), 0);
    assert_int_equal(wal_reader_next(r, &record, NULL), 0);
    assert_non_null(record);
    wal_reader_where(r, where, sizeof where);
    assert_int_equal(sscanf(where, "byte %lu", &at), 1);
    wal_reader_free(r);
    return at;
}

static void damage_before_the_first_record_that_is_wanted_is_not_in_the_way(void **state)
{
    struct crash_files c;
    struct wal_segments all;
    struct crash_inode *file;
    struct wal_end end;
    size_t n, wanted;
    uint64_t from;

    (void)state;
    make(&c, WAL_FSYNC);
    file = segment_at(&c, 1, &n);
    assert_int_equal(wal_segment_list(&c.ops, LOG_DIR, &all, NULL), 0);
    from = all.firsts[2] - 1;
    free(all.firsts);
    wanted = block_of(&c, from);
    assert_true(wanted > WAL_SEGMENT_HEADER_BYTES + 3 * WAL_BLOCK_HEADER_BYTES);
    for (size_t i = 0; i < file->n_bytes; i++) {
        file->bytes[i] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(fixture_read(&c.ops, from, &end), 0);
        file->bytes[i] ^= (uint8_t)(1u << i % 8);
        if (end.verdict != (i < wanted ? WAL_CLEAN : WAL_DAMAGED))
            fail_msg("byte %zu of %zu: %s", i, wanted, end.text);
        if (i < wanted)
            assert_int_equal(end.last, N_RECORDS);
        c.n_opens = 0;
    }
    crash_files_deinit(&c);
}

/* --- sectors that cannot be read --- */

/* A disk on which some bytes of a file answer -EIO, as Linux does: what is before them is read. */
struct bad_sectors {
    struct crash_files files;
    struct file_ops ops;
    const struct crash_inode *file;
    size_t first, end;
    uint64_t n_read; /* bytes */
};

static int64_t read_bad(void *state, int fd, void *dst, size_t n_bytes)
{
    struct bad_sectors *d = state;
    const struct crash_open *open = &d->files.opens[fd];
    int64_t n;

    if (&d->files.inodes[open->inode] == d->file && open->offset < d->end) {
        if (open->offset >= d->first)
            return -EIO;
        if (n_bytes > d->first - open->offset)
            n_bytes = d->first - open->offset;
    }
    n = d->files.ops.read(&d->files, fd, dst, n_bytes);
    d->n_read += n > 0 ? (uint64_t)n : 0;
    return n;
}

static int64_t skip_bad(void *state, int fd, uint64_t n_bytes)
{
    struct bad_sectors *d = state;
    struct crash_open *open = &d->files.opens[fd];
    size_t left = d->files.inodes[open->inode].n_bytes - open->offset;

    if (n_bytes > left)
        n_bytes = left;
    open->offset += n_bytes;
    return (int64_t)n_bytes;
}

static int open_bad(void *state, const char *path, int *ret_fd)
{
    struct bad_sectors *d = state;

    return d->files.ops.open_read(&d->files, path, ret_fd);
}

static int close_bad(void *state, int fd)
{
    struct bad_sectors *d = state;

    return d->files.ops.close(&d->files, fd);
}

static int list_bad(void *state, const char *path, int (*each)(void *, const char *), void *arg)
{
    struct bad_sectors *d = state;

    return d->files.ops.list(&d->files, path, each, arg);
}

enum { N_LONG = 400, SECTOR = 4096 };

/* One closed segment of many sectors; blocks of as many bytes. */
static void make_long(struct bad_sectors *d, uint64_t n_records, size_t block_bytes)
{
    struct wal_writer_config config;
    struct fixture_log l;
    size_t n;

    crash_files_init(&d->files);
    config = fixture_config(&d->files.ops, WAL_FSYNC);
    config.segment_bytes = 16 << 20;
    config.zstd = WAL_ZSTD_OFF;
    assert_int_equal(fixture_reopen(&l, &config), 0);
    wal_queue_deinit(&l.queue);
    wal_queue_init(&l.queue, &(struct wal_queue_config){ .durability = WAL_FSYNC,
                                                         .next_number = 1,
                                                         .block_bytes = block_bytes });
    while (l.queue.next_number <= n_records) {
        assert_int_equal(fixture_append(&l), 0);
        if (block_bytes < SECTOR && l.queue.next_number % 3 == 0)
            fixture_work(&l);
    }
    fixture_work(&l);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    fixture_free(&l);
    d->file = segment_at(&d->files, 0, &n);
    assert_int_equal(n, 1);
    assert_true(d->file->n_bytes > 6 * SECTOR);
    d->ops = (struct file_ops){ .state = d,
                                .open_read = open_bad,
                                .read = read_bad,
                                .close = close_bad,
                                .list = list_bad,
                                .skip = skip_bad };
}

static void
a_sector_that_cannot_be_read_is_damage_and_before_what_is_wanted_in_nobodys_way(void **state)
{
    struct bad_sectors d = { 0 };
    struct wal_end end;
    uint64_t from = N_LONG * 2 / 3;
    size_t wanted;

    (void)state;
    make_long(&d, N_LONG, 2000);
    wanted = block_of(&d.files, from);
    for (d.first = 0; d.first < d.file->n_bytes; d.first += SECTOR) {
        d.end = d.first + SECTOR;
        assert_int_equal(fixture_read(&d.ops, 1, &end), 0);
        assert_int_equal(end.verdict, WAL_DAMAGED); /* also at the end: it is not called torn */
        assert_true(end.offset < d.end && end.last < N_LONG);
        assert_non_null(strstr(end.text, "cannot be read: Input/output error"));
        assert_non_null(strstr(end.text, ".psl"));
        assert_int_equal(fixture_read(&d.ops, from, &end), 0);
        /* Without its segment's header no block can be checked. */
        if (end.verdict != (d.first && d.end <= wanted ? WAL_CLEAN : WAL_DAMAGED))
            fail_msg("bytes from %zu, wanted %zu: %s", d.first, wanted, end.text);
        if (d.first && d.end <= wanted)
            assert_int_equal(end.last, N_LONG);
    }
    d.first = 0; /* a disk that is gone */
    d.end = SIZE_MAX;
    assert_int_equal(fixture_read(&d.ops, 1, &end), 0);
    assert_int_equal(end.verdict, WAL_DAMAGED);
    d.ops.skip = NULL;
    assert_int_equal(fixture_read(&d.ops, 1, &end), -EIO);
    crash_files_deinit(&d.files);
}

static void blocks_that_nobody_wants_are_not_read(void **state)
{
    enum { BLOCK = 1 << 20, N_BIG = 12000 };
    struct bad_sectors d = { 0 };
    struct wal_end end;
    struct wal_reader *r;
    const struct wal_record *record;

    (void)state;
    make_long(&d, N_BIG, BLOCK);
    assert_true(d.file->n_bytes > 3 * BLOCK);
    d.first = BLOCK / 2; /* in a block that nobody wants */
    d.end = d.first + SECTOR;
    assert_int_equal(wal_reader_open(&d.ops, LOG_DIR, NULL, N_BIG, &r, NULL), 0);
    assert_int_equal(wal_reader_next(r, &record, NULL), 0);
    assert_int_equal(record->number, N_BIG);
    assert_int_equal(wal_reader_next(r, &record, NULL), 0);
    assert_null(record);
    assert_int_equal(wal_reader_end(r)->verdict, WAL_CLEAN);
    assert_int_equal(wal_reader_n_file_bytes(r), d.file->n_bytes);
    assert_true(d.n_read < d.file->n_bytes * 2 / 3);
    wal_reader_free(r);
    d.first = d.end = 0;
    ((struct crash_inode *)d.file)->n_bytes = BLOCK / 2; /* in the middle of a block */
    assert_int_equal(fixture_read(&d.ops, N_BIG, &end), 0);
    assert_int_equal(end.verdict, WAL_TORN);
    assert_true(end.last_present < N_BIG);
    crash_files_deinit(&d.files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_byte_of_a_closed_log_is_damage),
        cmocka_unit_test(a_segment_with_a_damaged_header_of_another_owner_is_not_read),
        cmocka_unit_test(truncation_is_a_torn_tail_in_the_last_segment_and_damage_before_it),
        cmocka_unit_test(a_missing_segment_is_damage),
        cmocka_unit_test(random_damage_never_harms_and_never_invents),
        cmocka_unit_test(a_damaged_log_is_not_written_to),
        cmocka_unit_test(a_block_inside_of_a_push_is_no_block),
        cmocka_unit_test(damage_before_the_first_record_that_is_wanted_is_not_in_the_way),
        cmocka_unit_test(
            a_sector_that_cannot_be_read_is_damage_and_before_what_is_wanted_in_nobodys_way),
        cmocka_unit_test(blocks_that_nobody_wants_are_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
