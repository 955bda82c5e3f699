/* Files whose checksums are right and whose contents lie: each is refused with a sentence. */
#include "common/crc.h"
#include "server/store/part_read.h"
#include "tests/unit/store/fixture.h"

#define PATH "data/x.psc"
#define ROW_BYTES (PART_ROW_HEAD_BYTES + 32) /* of the dense table: 4 weights, 4 sums */

/* A file in the making; a test changes one thing of it before it is written. */
struct lie {
    struct part_header header;
    struct part_table tables[2];
    uint32_t n_tables; /* records really written */
    struct part_chunk chunk;
    uint64_t keys[4], stamps[4];
    uint32_t n_row_bytes; /* rows really written */
    struct part_footer footer;
    bool footer_is_wrong;
    size_t n_behind; /* bytes behind the footer */
};

static void lie_init(struct lie *l)
{
    *l = (struct lie){ .header = { .number = 1, .version = 9, .n_tables = 2 }, .n_tables = 2 };
    for (uint32_t i = 0; i < 2; i++) {
        l->tables[i].spec = fixture_spec(i);
        l->tables[i].payload_bytes =
            4 * (l->tables[i].spec.dim +
                 optim_find(l->tables[i].spec.optim)->state_floats(l->tables[i].spec.dim));
    }
    l->tables[1].n_rows = 2;
    l->keys[1] = 1;
    l->chunk = (struct part_chunk){ .table = 1, .n_rows = 2, .n_bytes = 2 * ROW_BYTES };
    l->n_row_bytes = l->chunk.n_bytes;
}

static void append(struct crash_files *c, int fd, struct lie *l, const void *bytes,
                   size_t n_bytes)
{
    assert_int_equal(c->ops.write_all(c, fd, bytes, n_bytes), 0);
    l->footer.n_bytes += n_bytes;
    l->footer.crc = crc_extend(l->footer.crc, bytes, n_bytes);
}

static void write_lie(struct crash_files *c, struct lie *l)
{
    uint8_t bytes[PART_TABLE_BYTES], rows[4 * ROW_BYTES] = { 0 };
    int fd;

    assert_int_equal(c->ops.mkdir(c, "data"), 0);
    assert_int_equal(c->ops.create(c, PATH, &fd), 0);
    part_encode_header(bytes, &l->header);
    append(c, fd, l, bytes, PART_HEADER_BYTES);
    for (uint32_t i = 0; i < l->n_tables; i++) {
        part_encode_table(bytes, &l->tables[i]);
        append(c, fd, l, bytes, PART_TABLE_BYTES);
    }
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(rows + i * ROW_BYTES, &l->keys[i], 8);
        memcpy(rows + i * ROW_BYTES + 8, &l->stamps[i], 8);
    }
    assert_true(l->n_row_bytes <= sizeof rows);
    if (l->n_row_bytes) {
        struct part_chunk real = l->chunk;

        real.n_bytes = l->chunk.n_bytes < sizeof rows ? l->chunk.n_bytes : l->n_row_bytes;
        part_encode_chunk(bytes, &real, rows);
        append(c, fd, l, bytes, PART_CHUNK_BYTES);
        append(c, fd, l, rows, l->n_row_bytes);
    }
    if (!l->footer_is_wrong) {
        l->footer.n_tables = l->header.n_tables;
        l->footer.n_rows = l->n_row_bytes ? l->chunk.n_rows : 0;
    }
    part_encode_footer(bytes, &l->footer);
    assert_int_equal(c->ops.write_all(c, fd, bytes, PART_FOOTER_BYTES), 0);
    assert_int_equal(c->ops.write_all(c, fd, rows, l->n_behind), 0);
    assert_int_equal(c->ops.close(c, fd), 0);
}

static int read_all(struct crash_files *c, struct err *err)
{
    struct part_reader r;
    struct part_rows rows;
    int status = part_read_open(&r, &c->ops, PATH, err);

    if (status)
        return status;
    do
        status = part_read_rows(&r, &rows);
    while (status > 0);
    part_read_close(&r);
    return status;
}

static void assert_lie(struct lie *l, const char *sentence)
{
    struct crash_files c;
    struct err err = { 0 };

    crash_files_init(&c);
    write_lie(&c, l);
    assert_int_equal(read_all(&c, &err), PS_ECORRUPT);
    if (!strstr(err.text, sentence) || !strstr(err.text, PATH) || !strstr(err.text, "at byte "))
        fail_msg("\"%s\", expected \"%s\"", err.text, sentence);
    assert_int_equal(crash_files_n_open(&c), 0);
    crash_files_deinit(&c);
}

static void the_truth_is_read(void **state)
{
    struct crash_files c;
    struct err err = { 0 };
    struct lie l;

    (void)state;
    crash_files_init(&c);
    lie_init(&l);
    write_lie(&c, &l);
    if (read_all(&c, &err) != 0)
        fail_msg("%s", err.text);
    crash_files_deinit(&c);
}

static void a_header_that_lies_is_refused(void **state)
{
    struct lie l;

    (void)state;
    lie_init(&l);
    l.header.n_tables = SHARD_N_TABLES_MAX + 1;
    assert_lie(&l, "more tables than a shard can have");
    lie_init(&l);
    l.header.version = UINT64_MAX;
    assert_lie(&l, "out of range");
    lie_init(&l);
    l.header.n_tables = 3;
    l.n_behind = 4 * ROW_BYTES; /* room for a third record, which is none */
    assert_lie(&l, "no table record where one must be");
    lie_init(&l);
    l.header.n_tables = 1;
    assert_lie(&l, "neither rows nor the footer");
}

static void a_table_that_lies_is_refused(void **state)
{
    struct lie l;

    (void)state;
    lie_init(&l);
    l.tables[0].spec.dim = 0;
    assert_lie(&l, "dim");
    lie_init(&l);
    l.tables[0].spec.kind = 77;
    assert_lie(&l, "kind");
    lie_init(&l);
    l.tables[0].spec.optim = 1000;
    assert_lie(&l, "optim");
    lie_init(&l);
    l.tables[0].spec.params.learning_rate = __builtin_nanf("");
    assert_lie(&l, "learning_rate");
    lie_init(&l);
    memset(l.tables[0].spec.name, 0, SPEC_NAME_MAX);
    assert_lie(&l, "name");
    lie_init(&l);
    l.tables[0].payload_bytes++;
    assert_lie(&l, "not as wide as its optimizer needs");
    lie_init(&l);
    l.tables[0].spec.storage = SPEC_FP16; /* which is narrower */
    assert_lie(&l, "not as wide as its optimizer needs");
    lie_init(&l);
    l.tables[0].spec.storage = SPEC_STORAGE_END;
    assert_lie(&l, "storage");
    lie_init(&l);
    l.tables[1].spec.limits.ttl_s = 1;
    assert_lie(&l, "ttl_s is 1; expected 0, as the table is dense");
    lie_init(&l);
    l.tables[0].payload_bytes--;
    assert_lie(&l, "not as wide as its optimizer needs");
    lie_init(&l);
    l.tables[1].n_rows = 9;
    assert_lie(&l, "more rows than blocks");
}

static void rows_that_lie_are_refused(void **state)
{
    struct lie l;

    (void)state;
    lie_init(&l);
    l.chunk.table = 2;
    assert_lie(&l, "rows of a table that has no record");
    lie_init(&l);
    l.chunk.n_rows = 0;
    assert_lie(&l, "a count of rows is out of range");
    lie_init(&l);
    l.chunk.n_rows = UINT32_MAX;
    assert_lie(&l, "a count of rows is out of range");
    lie_init(&l);
    l.chunk.n_rows = 3;
    assert_lie(&l, "does not match their length");
    lie_init(&l);
    l.keys[1] = 8;
    assert_lie(&l, "behind its last block");
    lie_init(&l);
    l.stamps[1] = row_stamp(10, 3, 0);
    assert_lie(&l, "a row is newer than the shard");
    lie_init(&l);
    l.tables[1].n_rows = 1;
    assert_lie(&l, "more rows than its record says");
    lie_init(&l);
    l.tables[1].n_rows = 3;
    assert_lie(&l, "fewer rows than its record says");
}

static void a_footer_that_lies_is_refused(void **state)
{
    struct lie l;

    (void)state;
    lie_init(&l);
    l.footer_is_wrong = true;
    l.footer.n_tables = 2;
    l.footer.n_rows = 1;
    assert_lie(&l, "the footer's totals");
    lie_init(&l);
    l.footer_is_wrong = true;
    l.footer.n_tables = 1;
    l.footer.n_rows = 2;
    assert_lie(&l, "the footer's totals");
    lie_init(&l);
    l.n_behind = 1;
    assert_lie(&l, "bytes behind the footer");
}

static void a_records_bytes_are_those_of_the_format(void **state)
{
    uint8_t bytes[PART_TABLE_BYTES];
    struct part_table table = {
        .spec = fixture_spec(0), .n_pushes = 5, .n_rows = 6, .payload_bytes = 60
    };
    static const struct {
        size_t offset;
        uint32_t want;
    } words[] = { { 132, SPEC_SPARSE },
                  { 136, 5 },
                  { 156, SPEC_INIT_UNIFORM },
                  { 160, 0x3e800000 },
                  { 164, SPEC_ADAM },
                  { 216, 7 },
                  { 220, SPEC_DECAY_EXP },
                  { 224, 5 },
                  { 232, 100 },
                  { 240, 0x3f000000 },
                  { 248, 0x40000000 },
                  { 252, SPEC_MODE_SSP },
                  { 256, 3 },
                  { 260, SPEC_FP16 },
                  { 264, 3 },
                  { 268, 1000 },
                  { 276, 2000 },
                  { 284, 86400 },
                  { 288, 4 },
                  { 292, 3000 },
                  { 300, SPEC_VICTIMS_OLDEST },
                  { 304, 0 },
                  { 308, 1 << 8 },
                  { 312, 5 },
                  { 320, 6 },
                  { 328, 60 } };
    uint32_t word;

    (void)state;
    table.spec.storage = SPEC_FP16;
    table.spec.limits = fixture_spec(2).limits;
    part_encode_table(bytes, &table);
    assert_memory_equal(bytes, "TABLemb\0", 8);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        memcpy(&word, bytes + words[i].offset, 4);
        if (word != words[i].want)
            fail_msg("at byte %zu: %08x, expected %08x", words[i].offset, word, words[i].want);
    }
    memcpy(&word, bytes + 332, 4);
    assert_int_equal(word, crc_extend(0, bytes, 332));
}

/* Bytes written by hand, as README.md tells them of format 1. */
struct pen {
    uint8_t bytes[1024];
    size_t n;
};

static void put_bytes(struct pen *p, const void *src, size_t n_bytes)
{
    memcpy(p->bytes + p->n, src, n_bytes);
    p->n += n_bytes;
}

static void put_u32(struct pen *p, uint32_t value)
{
    put_bytes(p, &value, 4);
}

static void put_u64(struct pen *p, uint64_t value)
{
    put_bytes(p, &value, 8);
}

static void put_f32(struct pen *p, float value)
{
    put_bytes(p, &value, 4);
}

/* The crc of what stands from `from` on. */
static void put_crc(struct pen *p, size_t from)
{
    put_u32(p, crc_extend(0, p->bytes + from, p->n - from));
}

static void put_format_1_table(struct pen *p)
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

static void put_format_1_row(struct pen *p, uint64_t key, uint64_t version, float first)
{
    put_u64(p, key);
    put_u64(p, version);
    put_u64(p, 12345); /* its last clock */
    for (uint32_t i = 0; i < 3; i++)
        put_f32(p, first + (float)i);
}

static void put_format_1_rows(struct pen *p)
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
    crc = crc_extend(0, p->bytes + from, 16);
    crc = crc_extend(crc, p->bytes + from + 20, 2 * 36);
    memcpy(p->bytes + from + 16, &crc, 4);
}

static void write_format_1(struct crash_files *c, uint64_t version)
{
    struct pen p = { .n = 0 };
    size_t n_before;
    int fd;

    put_bytes(&p, "PSDPART\n", 8);
    put_u32(&p, 1); /* the format */
    put_u32(&p, 0); /* shard_index */
    put_u64(&p, 1); /* number */
    put_u64(&p, version);
    put_u32(&p, 1); /* n_tables */
    put_crc(&p, 0);
    put_format_1_table(&p);
    put_format_1_rows(&p);
    n_before = p.n;
    put_bytes(&p, "END\n", 4);
    put_u32(&p, 1); /* n_tables */
    put_u64(&p, 2); /* n_rows */
    put_u64(&p, n_before);
    put_u32(&p, crc_extend(0, p.bytes, n_before));
    put_crc(&p, n_before);
    assert_int_equal(p.n, 40 + 284 + 20 + 72 + 32);
    assert_int_equal(c->ops.mkdir(c, "data"), 0);
    assert_int_equal(c->ops.create(c, PATH, &fd), 0);
    assert_int_equal(c->ops.write_all(c, fd, p.bytes, p.n), 0);
    assert_int_equal(c->ops.close(c, fd), 0);
}

static void assert_format_1_row(const struct part_rows *rows, uint32_t i, uint64_t want_key,
                                uint64_t want_version, float first)
{
    uint64_t key, stamp;
    const void *payload = part_read_row(rows, i, &key, &stamp);
    const float want[] = { first, first + 1, first + 2 };

    assert_true(key == want_key && stamp == row_stamp(want_version, 0, 0));
    assert_memory_equal(payload, want, sizeof want);
}

static void a_file_of_format_1_is_read_as_fp32_without_limits(void **state)
{
    const struct spec_limits none = { 0 };
    struct crash_files c;
    struct part_reader r;
    struct part_rows rows;
    struct err err = { 0 };

    (void)state;
    crash_files_init(&c);
    write_format_1(&c, 9);
    if (part_read_open(&r, &c.ops, PATH, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(r.header.version, 9);
    assert_string_equal(r.tables[0].spec.name, "old");
    assert_int_equal(r.tables[0].spec.storage, SPEC_FP32);
    assert_memory_equal(&r.tables[0].spec.limits, &none, sizeof none);
    assert_true(r.tables[0].spec.params.learning_rate == 0.125f);
    assert_int_equal(r.tables[0].n_pushes, 40);
    assert_int_equal(r.tables[0].payload_bytes, 12);
    assert_int_equal(part_read_rows(&r, &rows), 1);
    assert_int_equal(rows.n_rows, 2);
    assert_format_1_row(&rows, 0, 5, 9, 1.5f);
    assert_format_1_row(&rows, 1, UINT64_MAX, 8, -2.5f);
    assert_int_equal(part_read_rows(&r, &rows), 0);
    part_read_close(&r);
    crash_files_deinit(&c);
    crash_files_init(&c);
    write_format_1(&c, 8); /* and a row of version 9 */
    assert_int_equal(read_all(&c, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "a row is newer than the shard"));
    crash_files_deinit(&c);
}

static void a_format_to_come_is_refused(void **state)
{
    uint8_t bytes[PART_HEADER_BYTES];
    struct part_header header;

    (void)state;
    part_encode_header(bytes, &(struct part_header){ .number = 1 });
    assert_null(part_decode_header(bytes, &header));
    bytes[8] = 3;
    assert_non_null(strstr(part_decode_header(bytes, &header), "neither 1 nor 2"));
}

/* A lie about flags would be one about table.c's own. */
static void flags_in_a_file_are_left_out(void **state)
{
    uint8_t bytes[PART_ROW_HEAD_BYTES] = { 0 };
    uint64_t key, stamp = row_stamp(6, 5, 0xff);

    (void)state;
    memcpy(bytes + 8, &stamp, 8);
    part_decode_row_head(bytes, PART_FORMAT, &key, &stamp);
    assert_true(stamp == row_stamp(6, 5, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_truth_is_read),
        cmocka_unit_test(a_header_that_lies_is_refused),
        cmocka_unit_test(a_table_that_lies_is_refused),
        cmocka_unit_test(rows_that_lie_are_refused),
        cmocka_unit_test(a_footer_that_lies_is_refused),
        cmocka_unit_test(a_file_of_format_1_is_read_as_fp32_without_limits),
        cmocka_unit_test(a_format_to_come_is_refused),
        cmocka_unit_test(flags_in_a_file_are_left_out),
        cmocka_unit_test(a_records_bytes_are_those_of_the_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
