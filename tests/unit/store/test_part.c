/* Files whose checksums are right and whose contents lie: each is refused with a sentence. */
#include "common/crc.h"
#include "server/store/part_read.h"
#include "tests/unit/store/fixture.h"

#define PATH "data/x.psc"

/* A file in the making; a test changes one thing of it before it is written. */
struct lie {
    struct part_header header;
    struct part_table tables[2];
    uint32_t n_tables; /* records really written */
    struct part_chunk chunk;
    uint64_t keys[4];
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
        l->tables[i].row_floats =
            l->tables[i].spec.dim +
            optim_find(l->tables[i].spec.optim)->state_floats(l->tables[i].spec.dim);
    }
    l->tables[1].n_rows = 2;
    l->keys[1] = 1;
    l->chunk = (struct part_chunk){ .table = 1, .n_rows = 2, .n_bytes = 2 * part_row_bytes(8) };
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
    uint8_t bytes[PART_TABLE_BYTES], rows[4 * (PART_ROW_HEAD_BYTES + 32)] = { 0 };
    int fd;

    assert_int_equal(c->ops.mkdir(c, "data"), 0);
    assert_int_equal(c->ops.create(c, PATH, &fd), 0);
    part_encode_header(bytes, &l->header);
    append(c, fd, l, bytes, PART_HEADER_BYTES);
    for (uint32_t i = 0; i < l->n_tables; i++) {
        part_encode_table(bytes, &l->tables[i]);
        append(c, fd, l, bytes, PART_TABLE_BYTES);
    }
    for (uint32_t i = 0; i < 4; i++)
        memcpy(rows + i * part_row_bytes(8), &l->keys[i], 8);
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
    l.n_behind = 200; /* room for a third record, which is none */
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
    l.tables[0].row_floats++;
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
        .spec = fixture_spec(0), .n_pushes = 5, .n_rows = 6, .row_floats = 15
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
                  { 260, 5 },
                  { 268, 6 },
                  { 276, 15 } };
    uint32_t word;

    (void)state;
    part_encode_table(bytes, &table);
    assert_memory_equal(bytes, "TABLemb\0", 8);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        memcpy(&word, bytes + words[i].offset, 4);
        if (word != words[i].want)
            fail_msg("at byte %zu: %08x, expected %08x", words[i].offset, word, words[i].want);
    }
    memcpy(&word, bytes + 280, 4);
    assert_int_equal(word, crc_extend(0, bytes, 280));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_truth_is_read),
        cmocka_unit_test(a_header_that_lies_is_refused),
        cmocka_unit_test(a_table_that_lies_is_refused),
        cmocka_unit_test(rows_that_lie_are_refused),
        cmocka_unit_test(a_footer_that_lies_is_refused),
        cmocka_unit_test(a_records_bytes_are_those_of_the_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
