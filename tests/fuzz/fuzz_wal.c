/*
 * A shard's write-ahead log: u8 from | the folder of its segments (disk.h).
 *
 * The reader hands out records in their order, each of which is written as the bytes that it is read from
 * again, and ends with a verdict. A writer goes on behind whatever is not damaged: then all that was read
 * is there, and what it has added.
 */
#include "tests/unit/wal/fixture.h"

#include "tests/fuzz/disk.h"

#define DIR LOG_DIR

struct story {
    int status; /* of the process or the device */
    bool has_identity;
    struct wal_identity identity;
    struct wal_end end;
    uint64_t n, digest; /* records */
};

/* Written, it is read as what it was. Its place in the log and its checksum do not count. */
static void check_record(const struct wal_record *record, uint64_t *digest)
{
    size_t n_bytes = wal_record_bytes(record), n_read;
    uint8_t *first = aligned_alloc(8, n_bytes), *second = aligned_alloc(8, n_bytes);
    struct wal_record_storage *storage = malloc(sizeof *storage);
    struct wal_record again;
    struct err reason;
    uint32_t crc = 0;

    assert(first && second && storage);
    wal_record_encode(first, record);
    assert(wal_record_seal(first, &crc) == n_bytes);
    assert(!wal_record_decode(first, n_bytes, storage, &again, &n_read, &reason));
    assert(n_read == n_bytes && wal_record_bytes(&again) == n_bytes);
    wal_record_encode(second, &again);
    assert(wal_record_seal(second, &crc) == n_bytes);
    assert(memcmp(first, second, n_bytes) == 0);
    harness_digest(digest, first, n_bytes);
    free(first);
    free(second);
    free(storage);
}

static void check_end(const struct wal_end *end, uint64_t from, uint64_t next)
{
    assert(end->last == next - 1);
    assert(end->last_present <= end->last);
    assert(end->last_present == end->last || next == from);
    assert(end->verdict == WAL_CLEAN || end->text[0]);
}

static struct story read_log(const struct file_ops *files, uint64_t from)
{
    struct story got = { 0 };
    const struct wal_record *record;
    struct err err = { 0 };
    struct wal_reader *r;

    got.status = wal_reader_open(files, DIR, NULL, from, &r, &err);
    if (got.status) {
        assert(err.text[0]);
        return got;
    }
    while ((got.status = wal_reader_next(r, &record, &err)) == 0 && record) {
        assert(record->number == from + got.n);
        check_record(record, &got.digest);
        got.n++;
    }
    assert(!got.status == !err.text[0]);
    if (!got.status) {
        got.end = *wal_reader_end(r);
        check_end(&got.end, from, from + got.n);
        got.has_identity = wal_reader_identity(r) != NULL;
        if (got.has_identity)
            got.identity = *wal_reader_identity(r);
    }
    wal_reader_free(r);
    return got;
}

/* One record more, and the end. */
static int append(const struct file_ops *files, const struct story *got, uint64_t *ret_digest)
{
    struct wal_writer_config config = { .files = files,
                                        .dir = DIR,
                                        .identity = got->identity,
                                        .durability = WAL_FSYNC,
                                        .segment_bytes = 4000 };
    struct wal_record record = { .event = { .type = SHARD_EVENT_COMBINE,
                                            .combine = { 3, 4 } } };
    struct wal_queue_config to = { .durability = WAL_FSYNC, .next_number = got->end.last + 1 };
    struct wal_writer *w;
    struct wal_queue q;
    struct err err = { 0 };
    uint64_t due_ms;
    int status = wal_writer_open(&config, &got->end, 1700000000000, &w, &err);

    if (status) {
        assert(err.text[0]);
        return status;
    }
    wal_queue_init(&q, &to);
    status = wal_queue_reserve(&q, wal_record_bytes(&record));
    assert(status == 0);
    record.number = wal_queue_append(&q, &record, 1000);
    check_record(&record, ret_digest);
    wal_writer_drain(w, &q);
    wal_writer_work(w, 1000, 1700000000000, &due_ms);
    wal_writer_report(w, &q);
    status = wal_writer_close(w, 1000, 1700000000000);
    assert(status == 0);
    assert(wal_writer_progress(w)->durable == record.number);
    wal_writer_free(w);
    wal_queue_deinit(&q);
    return 0;
}

static void check_append(const struct file_ops *files, uint64_t from, const struct story *got)
{
    uint64_t digest = got->digest;
    struct story again;

    if (append(files, got, &digest))
        return;
    again = read_log(files, from);
    assert(again.status == 0);
    assert(again.end.verdict == WAL_CLEAN);
    assert(again.n == got->n + 1 && again.digest == digest);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    uint64_t from = 1 + harness_number(&in, 1);
    struct crash_files disk;
    struct story got;

    crash_files_init(&disk);
    disk_fill(&disk, DIR, &in);
    got = read_log(&disk.ops, from);
    assert(crash_files_n_open(&disk) == 0);
    if (!got.status && (got.end.verdict == WAL_CLEAN || got.end.verdict == WAL_TORN) &&
        got.end.last_present == got.end.last)
        check_append(&disk.ops, from, &got);
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

/* Logs of one to 60 records, with and without zstd, closed and cut off. */
bool harness_seed(uint32_t i, struct bytes *out)
{
    const uint32_t n_records[] = { 0, 1, 7, 30, 60 };
    struct fixture_log log;
    struct crash_files disk;
    struct wal_writer_config config;

    if (i >= 4 * COUNT_OF(n_records))
        return false;
    crash_files_init(&disk);
    config = fixture_config(&disk.ops, (enum wal_durability)(i % 3));
    config.zstd = i & 1 ? WAL_ZSTD_OFF : WAL_ZSTD_WHERE_IT_PAYS;
    assert_int_equal(fixture_reopen(&log, &config), 0);
    for (uint32_t n = 0; n < n_records[i / 4]; n++) {
        assert_int_equal(fixture_append(&log), 0);
        if (n % 6 == 5)
            fixture_work(&log);
    }
    fixture_work(&log);
    if (i & 2)
        assert_int_equal(wal_writer_close(log.writer, log.now_ms, 0), 0);
    harness_put_number(out, i / 4, 1);
    disk_dump(&disk, DIR, out);
    fixture_free(&log);
    crash_files_deinit(&disk);
    return true;
}
