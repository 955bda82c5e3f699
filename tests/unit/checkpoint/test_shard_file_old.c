/* Files of formats 1 and 2, written by hand as README.md tells of them, are still read. */
#include "common/crc32c.h"
#include "tests/unit/checkpoint/shard_file_bytes.h"

struct field_io {
    uint8_t bytes[1024];
    size_t n;
};

static void put_bytes(struct field_io *p, const void *src, size_t n_bytes)
{
    memcpy(p->bytes + p->n, src, n_bytes);
    p->n += n_bytes;
}

static void put_u32(struct field_io *p, uint32_t value)
{
    put_bytes(p, &value, 4);
}

static void put_u64(struct field_io *p, uint64_t value)
{
    put_bytes(p, &value, 8);
}

static void put_f32(struct field_io *p, float value)
{
    put_bytes(p, &value, 4);
}

/* The crc of what stands from `from` on. */
static void put_crc(struct field_io *p, size_t from)
{
    put_u32(p, crc32c_extend(0, p->bytes + from, p->n - from));
}

static void put_format_1_table(struct field_io *p)
{
    size_t from = p->n;

    put_bytes(p, "TABLold", 7);
    p->n = from + 132;  /* the name's zeros */
    put_u32(p, 0);      /* sparse */
    put_u32(p, 2);      /* dim */
    put_u64(p, 0);      /* n_floats */
    put_u64(p, 77);     /* seed */
    put_u32(p, 1);      /* uniform */
    put_f32(p, 0.5f);   /* init_scale */
    put_u32(p, 3);      /* rowwise_adagrad */
    put_f32(p, 0.125f); /* learning_rate */
    put_f32(p, 0.001f); /* epsilon */
    p->n = from + 216;  /* the other parameters are 0 */
    p->n = from + 252;  /* so is the schedule, and clip_norm */
    put_u32(p, 1);      /* async */
    put_u32(p, 0);      /* bound */
    put_u64(p, 40);     /* n_pushes */
    put_u64(p, 2);      /* n_rows */
    put_u32(p, 3);      /* row_floats: 2 weights, 1 sum */
    put_crc(p, from);
    assert_int_equal(p->n, from + 284);
}

static void put_format_1_row(struct field_io *p, uint64_t key, uint64_t version, float first)
{
    put_u64(p, key);
    put_u64(p, version);
    put_u64(p, 12345); /* its last clock */
    for (uint32_t i = 0; i < 3; i++)
        put_f32(p, first + (float)i);
}

static void put_format_1_rows(struct field_io *p)
{
    size_t from = p->n;
    uint32_t crc;

    put_bytes(p, "ROWS", 4);
    put_u32(p, 0); /* table */
    put_u32(p, 2); /* n_rows */
    put_u32(p, 2 * 36);
    put_u32(p, 0); /* the crc's place */
    put_format_1_row(p, 5, 9, 1.5f);
    put_format_1_row(p, UINT64_MAX, 8, -2.5f);
    crc = crc32c_extend(0, p->bytes + from, 16);
    crc = crc32c_extend(crc, p->bytes + from + 20, 2 * 36);
    memcpy(p->bytes + from + 16, &crc, 4);
}

static void put_format_2_rows(struct field_io *p)
{
    const float values[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    size_t from = p->n;
    uint32_t crc;

    put_bytes(p, "ROWS", 4);
    put_u32(p, 0);
    put_u32(p, 1);
    put_u32(p, SHARD_FILE_BYTES_ROW);
    put_u32(p, 0);                /* the crc's place */
    put_u64(p, 3);                /* key */
    put_u64(p, 9 << 16 | 7 << 8); /* version, touches */
    put_bytes(p, values, sizeof values);
    crc = crc32c_extend(0, p->bytes + from, 16);
    crc = crc32c_extend(crc, p->bytes + from + 20, SHARD_FILE_BYTES_ROW);
    memcpy(p->bytes + from + 16, &crc, 4);
}

/* n_rows: what the table's record says; one is there. */
static void put_format_2_table(struct field_io *p, uint64_t n_rows)
{
    shard_file_encode_table(
        p->bytes + p->n,
        &(struct shard_file_table){
            .spec = fixture_spec(1), .n_pushes = 40, .n_rows = n_rows, .payload_bytes = 32 });
    p->n += SHARD_FILE_TABLE_BYTES;
}

/* Formats 1 and 2 have the same header and footer, and a checksum of all bytes. */
static void write_old(struct crash_files *c, uint32_t format, uint64_t version, uint64_t n_rows)
{
    struct field_io p = { .n = 0 };
    size_t n_before;
    int fd;

    put_bytes(&p, "PSDPART\n", 8);
    put_u32(&p, format);
    put_u32(&p, 0); /* shard_index */
    put_u64(&p, 1); /* number */
    put_u64(&p, version);
    put_u32(&p, 1); /* n_tables */
    put_crc(&p, 0);
    if (format == 1) {
        put_format_1_table(&p);
        put_format_1_rows(&p);
    } else {
        put_format_2_table(&p, n_rows);
        put_format_2_rows(&p);
    }
    n_before = p.n;
    put_bytes(&p, "END\n", 4);
    put_u32(&p, 1); /* n_tables */
    put_u64(&p, format == 1 ? 2 : 1);
    put_u64(&p, n_before);
    put_u32(&p, crc32c_extend(0, p.bytes, n_before));
    put_crc(&p, n_before);
    if (format == 1)
        assert_int_equal(p.n, 40 + 284 + 20 + 72 + 32);
    assert_int_equal(c->ops.mkdir(c, "data"), 0);
    assert_int_equal(c->ops.create(c, SHARD_FILE_BYTES_PATH, &fd), 0);
    assert_int_equal(c->ops.write_all(c, fd, p.bytes, p.n), 0);
    assert_int_equal(c->ops.close(c, fd), 0);
}

static void assert_old_lie(uint32_t format, uint64_t version, uint64_t n_rows,
                           const char *sentence)
{
    struct crash_files c;
    struct err err = { 0 };

    crash_files_init(&c);
    write_old(&c, format, version, n_rows);
    assert_int_equal(shard_file_bytes_read_all(&c, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, sentence));
    crash_files_deinit(&c);
}

static void assert_format_1_row(const struct shard_file_reader_chunk *rows, uint32_t i,
                                uint64_t want_key, uint64_t want_version, float first)
{
    uint64_t key, stamp;
    const void *payload = shard_file_reader_row(rows, i, &key, &stamp);
    const float want[] = { first, first + 1, first + 2 };

    assert_true(key == want_key && stamp == row_stamp(want_version, 0, 0));
    assert_memory_equal(payload, want, sizeof want);
}

static void a_file_of_format_1_is_read_as_fp32_without_limits(void **state)
{
    const struct table_spec_limits none = { 0 };
    struct crash_files c;
    struct shard_file_reader r;
    struct shard_file_reader_chunk rows;
    struct err err = { 0 };

    (void)state;
    crash_files_init(&c);
    write_old(&c, 1, 9, 2);
    if (shard_file_reader_open(&r, &c.ops, SHARD_FILE_BYTES_PATH, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(r.header.version, 9);
    assert_string_equal(r.tables[0].spec.name, "old");
    assert_int_equal(r.tables[0].spec.storage, TABLE_SPEC_FP32);
    assert_memory_equal(&r.tables[0].spec.limits, &none, sizeof none);
    assert_true(r.tables[0].spec.params.learning_rate == 0.125f);
    assert_int_equal(r.tables[0].n_pushes, 40);
    assert_int_equal(r.tables[0].payload_bytes, 12);
    assert_int_equal(shard_file_reader_next(&r, &rows), 1);
    assert_int_equal(rows.n_items, 2);
    assert_format_1_row(&rows, 0, 5, 9, 1.5f);
    assert_format_1_row(&rows, 1, UINT64_MAX, 8, -2.5f);
    assert_int_equal(shard_file_reader_next(&r, &rows), 0);
    shard_file_reader_close(&r);
    crash_files_deinit(&c);
    assert_old_lie(1, 8, 2, "a row is newer than the shard");
}

static void a_file_of_format_2_is_read(void **state)
{
    struct crash_files c;
    struct shard_file_reader r;
    struct shard_file_reader_chunk rows;
    struct err err = { 0 };
    uint64_t key, stamp;

    (void)state;
    crash_files_init(&c);
    write_old(&c, 2, 9, 1);
    if (shard_file_reader_open(&r, &c.ops, SHARD_FILE_BYTES_PATH, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(r.header.version, 9);
    assert_true(r.header.base == 0 && r.header.first == 0 && r.header.identity.n_shards == 0);
    assert_int_equal(shard_file_reader_next(&r, &rows), 1);
    assert_int_equal(rows.n_items, 1);
    assert_true(((const float *)shard_file_reader_row(&rows, 0, &key, &stamp))[7] == 8);
    assert_true(key == 3 && stamp == row_stamp(9, 7, 0));
    assert_int_equal(shard_file_reader_next(&r, &rows), 0);
    shard_file_reader_close(&r);
    crash_files_deinit(&c);
    assert_old_lie(2, 8, 1, "a row is newer than the shard");
    assert_old_lie(2, 9, 0, "more rows than its record says");
    assert_old_lie(2, 9, 2, "fewer rows than its record says");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_format_1_is_read_as_fp32_without_limits),
        cmocka_unit_test(a_file_of_format_2_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
