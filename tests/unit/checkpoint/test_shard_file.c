/* Files whose checksums are right and whose contents lie: each is refused with a sentence. */
#include "common/crc32c.h"
#include "tests/unit/checkpoint/shard_file_bytes.h"

/* A file in the making; a test changes one thing of it before it is written. */
struct lie {
    struct shard_file_header header;
    struct shard_file_table tables[2];
    uint32_t n_tables;                         /* records really written */
    struct shard_file_chunk state, gone, rows; /* without bytes: left out */
    bool rows_first;
    uint64_t keys[4], stamps[4];
    uint32_t n_row_bytes; /* rows really written */
    struct shard_file_footer footer;
    bool footer_is_wrong;
    size_t n_behind; /* bytes behind the footer */
};

static struct lie truth(void)
{
    struct lie l = { .header = { .number = 5,
                                 .version = 9,
                                 .n_tables = 2,
                                 .identity = { .shard = 1, .n_shards = 2 },
                                 .first = 30,
                                 .base = 4,
                                 .base_version = 7,
                                 .state_bytes = 12 },
                     .n_tables = 2,
                     .footer = { .through = 40, .last_version = 11 } };
    for (uint32_t i = 0; i < 2; i++) {
        l.tables[i].spec = fixture_spec(i);
        l.tables[i].payload_bytes =
            4 * (l.tables[i].spec.dim + table_spec_state_floats(&l.tables[i].spec));
    }
    l.keys[1] = 1;
    l.stamps[0] = row_stamp(11, 1, 0);
    l.state = (struct shard_file_chunk){ .what = SHARD_FILE_STATE, .n_bytes = 12 };
    l.gone = (struct shard_file_chunk){
        .what = SHARD_FILE_GONE, .table = 1, .n_items = 2, .n_bytes = 16
    };
    l.rows = (struct shard_file_chunk){
        .what = SHARD_FILE_ROWS, .table = 1, .n_items = 2, .n_bytes = 2 * SHARD_FILE_BYTES_ROW
    };
    l.n_row_bytes = l.rows.n_bytes;
    return l;
}

/* The file's checksum is that of heads alone. */
static void append(struct crash_files *c, int fd, struct lie *l, const void *bytes,
                   size_t n_bytes)
{
    assert_int_equal(c->ops.write_all(c, fd, bytes, n_bytes), 0);
    l->footer.n_bytes += n_bytes;
}

static void append_head(struct crash_files *c, int fd, struct lie *l, const void *bytes,
                        size_t n_bytes)
{
    append(c, fd, l, bytes, n_bytes);
    l->footer.crc = crc32c_extend(l->footer.crc, bytes, n_bytes);
}

static void append_chunk(struct crash_files *c, int fd, struct lie *l,
                         const struct shard_file_chunk *chunk, const uint8_t *bytes,
                         uint32_t n_bytes)
{
    struct shard_file_chunk real = *chunk;
    uint8_t head[SHARD_FILE_CHUNK_BYTES];

    if (n_bytes == 0)
        return;
    real.n_bytes = chunk->n_bytes < 4 * SHARD_FILE_BYTES_ROW ? chunk->n_bytes : n_bytes;
    shard_file_encode_chunk(head, &real, bytes);
    append_head(c, fd, l, head, sizeof head);
    append(c, fd, l, bytes, n_bytes);
}

static void append_rows(struct crash_files *c, int fd, struct lie *l)
{
    uint8_t rows[4 * SHARD_FILE_BYTES_ROW] = { 0 };

    for (uint32_t i = 0; i < 4; i++) {
        memcpy(rows + i * SHARD_FILE_BYTES_ROW, &l->keys[i], 8);
        memcpy(rows + i * SHARD_FILE_BYTES_ROW + 8, &l->stamps[i], 8);
    }
    assert_true(l->n_row_bytes <= sizeof rows);
    append_chunk(c, fd, l, &l->rows, rows, l->n_row_bytes);
}

static void write_lie(struct crash_files *c, struct lie *l)
{
    uint8_t bytes[SHARD_FILE_TABLE_BYTES], zeros[4 * SHARD_FILE_BYTES_ROW] = { 0 };
    int fd;

    assert_int_equal(c->ops.mkdir(c, "data"), 0);
    assert_int_equal(c->ops.create(c, SHARD_FILE_BYTES_PATH, &fd), 0);
    shard_file_encode_header(bytes, &l->header);
    append_head(c, fd, l, bytes, SHARD_FILE_HEADER_BYTES);
    for (uint32_t i = 0; i < l->n_tables; i++) {
        shard_file_encode_table(bytes, &l->tables[i]);
        append_head(c, fd, l, bytes, SHARD_FILE_TABLE_BYTES);
    }
    append_chunk(c, fd, l, &l->state, zeros, l->state.n_bytes);
    if (l->rows_first)
        append_rows(c, fd, l);
    append_chunk(c, fd, l, &l->gone, (const uint8_t *)l->keys, l->gone.n_bytes);
    if (!l->rows_first)
        append_rows(c, fd, l);
    if (!l->footer_is_wrong) {
        l->footer.n_tables = l->header.n_tables;
        l->footer.n_rows = l->n_row_bytes ? l->rows.n_items : 0;
        l->footer.n_gone = l->gone.n_items;
    }
    shard_file_encode_footer(bytes, &l->footer);
    assert_int_equal(c->ops.write_all(c, fd, bytes, SHARD_FILE_FOOTER_BYTES), 0);
    assert_int_equal(c->ops.write_all(c, fd, zeros, l->n_behind), 0);
    assert_int_equal(c->ops.close(c, fd), 0);
}

/* Written, it is refused with this sentence. *l is the truth again. */
static void assert_lie(struct lie *l, const char *sentence)
{
    struct crash_files c;
    struct err err = { 0 };

    crash_files_init(&c);
    write_lie(&c, l);
    assert_int_equal(shard_file_bytes_read_all(&c, &err), PS_ECORRUPT);
    if (!strstr(err.text, sentence) || !strstr(err.text, SHARD_FILE_BYTES_PATH) ||
        !strstr(err.text, "at byte "))
        fail_msg("\"%s\", expected \"%s\"", err.text, sentence);
    assert_int_equal(crash_files_n_open(&c), 0);
    crash_files_deinit(&c);
    *l = truth();
}

static void the_truth_is_read(void **state)
{
    struct crash_files c;
    struct err err = { 0 };
    struct lie l = truth();

    (void)state;
    crash_files_init(&c);
    write_lie(&c, &l);
    if (shard_file_bytes_read_all(&c, &err) != 0)
        fail_msg("%s", err.text);
    crash_files_deinit(&c);
}

static void a_header_that_lies_is_refused(void **state)
{
    struct lie l = truth();

    (void)state;
    l.header.n_tables = SHARD_TABLE_NUMBERS_MAX + 1;
    assert_lie(&l, "more tables than a shard can have");
    l.header.version = UINT64_MAX;
    assert_lie(&l, "out of range");
    l.header.base_version = 10;
    assert_lie(&l, "out of range");
    l.header.state_bytes = SHARD_FILE_STATE_MAX_BYTES + 1;
    assert_lie(&l, "out of range");
    l.header.base = 5;
    assert_lie(&l, "a delta to a later checkpoint");
    l.header.identity.n_shards = 1;
    assert_lie(&l, "a shard that its cluster does not have");
    l.header.n_tables = 3;
    l.n_behind = 4 * SHARD_FILE_BYTES_ROW; /* room for a third record, which is none */
    assert_lie(&l, "no table record where one must be");
    l.header.n_tables = 1;
    assert_lie(&l, "neither a chunk nor the footer");
}

static void a_table_that_lies_is_refused(void **state)
{
    struct lie l = truth();

    (void)state;
    l.tables[0].spec.dim = 0;
    assert_lie(&l, "dim");
    l.tables[0].spec.kind = 77;
    assert_lie(&l, "kind");
    l.tables[0].spec.optim = 1000;
    assert_lie(&l, "optim");
    l.tables[0].spec.params.learning_rate = __builtin_nanf("");
    assert_lie(&l, "learning_rate");
    memset(l.tables[0].spec.name, 0, TABLE_SPEC_NAME_MAX);
    assert_lie(&l, "name");
    l.tables[0].payload_bytes++;
    assert_lie(&l, "not as wide as its optimizer needs");
    l.tables[0].spec.storage = TABLE_SPEC_FP16; /* which is narrower */
    assert_lie(&l, "not as wide as its optimizer needs");
    l.tables[0].spec.storage = TABLE_SPEC_STORAGE_END;
    assert_lie(&l, "storage");
    l.tables[1].spec.limits.ttl_s = 1;
    assert_lie(&l, "ttl_s is 1; expected 0, as the table is dense");
    l.tables[0].payload_bytes--;
    assert_lie(&l, "not as wide as its optimizer needs");
    l.tables[1].n_rows = 9;
    assert_lie(&l, "more rows than blocks");
}

static void chunks_that_lie_are_refused(void **state)
{
    struct lie l = truth();

    (void)state;
    l.rows.table = 2;
    assert_lie(&l, "a chunk of a table that has no record");
    l.state.table = 1;
    assert_lie(&l, "a chunk of a table that has no record");
    l.rows.n_items = 0;
    assert_lie(&l, "a count of rows is out of range");
    l.state.n_items = 1;
    assert_lie(&l, "a count of rows is out of range");
    l.rows.n_items = 3;
    assert_lie(&l, "does not match their length");
    l.rows.n_items = UINT32_MAX;
    assert_lie(&l, "does not match their length");
    l.gone.n_items = 3;
    assert_lie(&l, "does not match their length");
    l.rows_first = true;
    assert_lie(&l, "chunks are not in their order");
    l.header.state_bytes = 11;
    assert_lie(&l, "more state than the header says");
    l.header.base = 0;
    assert_lie(&l, "rows that went in a full checkpoint");
}

static void rows_that_lie_are_refused(void **state)
{
    struct lie l = truth();

    (void)state;
    l.keys[1] = 8;
    assert_lie(&l, "behind its last block");
    l.keys[1] = 8;
    l.rows.n_bytes = l.n_row_bytes = l.rows.n_items = 0;
    assert_lie(&l, "behind its last block");
    l.stamps[1] = row_stamp(12, 3, 0);
    assert_lie(&l, "a row is newer than the shard");
}

static void a_footer_that_lies_is_refused(void **state)
{
    struct lie l = truth();

    (void)state;
    for (int i = 0; i < 4; i++) {
        l.footer_is_wrong = true;
        l.footer.n_tables = i == 0 ? 1 : 2;
        l.footer.n_rows = i == 1 ? 1 : 2;
        l.footer.n_gone = i == 2 ? 1 : 2;
        l.footer.n_bytes = i == 3;
        assert_lie(&l, "the footer's totals");
    }
    l.header.state_bytes = 13;
    assert_lie(&l, "less state than the header says");
    l.footer.through = 29;
    assert_lie(&l, "it ends before it begins");
    l.header.version = 12;
    assert_lie(&l, "a row is newer than the shard");
    l.n_behind = 1;
    assert_lie(&l, "bytes behind the footer");
}

static void a_records_bytes_are_those_of_the_format(void **state)
{
    uint8_t bytes[SHARD_FILE_TABLE_BYTES];
    struct shard_file_table table = {
        .spec = fixture_spec(0), .n_pushes = 5, .n_rows = 6, .payload_bytes = 60
    };
    static const struct {
        size_t offset;
        uint32_t want;
    } words[] = { { 132, TABLE_SPEC_SPARSE },
                  { 136, 5 },
                  { 156, TABLE_SPEC_INIT_UNIFORM },
                  { 160, 0x3e800000 },
                  { 164, TABLE_SPEC_ADAM },
                  { 216, 7 },
                  { 220, TABLE_SPEC_DECAY_EXP },
                  { 224, 5 },
                  { 232, 100 },
                  { 240, 0x3f000000 },
                  { 248, 0x40000000 },
                  { 252, TABLE_SPEC_MODE_SSP },
                  { 256, 3 },
                  { 260, TABLE_SPEC_FP16 },
                  { 264, 3 },
                  { 268, 1000 },
                  { 276, 2000 },
                  { 284, 86400 },
                  { 288, 4 },
                  { 292, 3000 },
                  { 300, TABLE_SPEC_VICTIMS_OLDEST },
                  { 304, 0 },
                  { 308, 1 << 8 },
                  { 312, 5 },
                  { 320, 6 },
                  { 328, 60 } };
    uint32_t word;

    (void)state;
    table.spec.storage = TABLE_SPEC_FP16;
    table.spec.limits = fixture_spec(2).limits;
    shard_file_encode_table(bytes, &table);
    assert_memory_equal(bytes, "TABLemb\0", 8);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        memcpy(&word, bytes + words[i].offset, 4);
        if (word != words[i].want)
            fail_msg("at byte %zu: %08x, expected %08x", words[i].offset, word, words[i].want);
    }
    memcpy(&word, bytes + 332, 4);
    assert_int_equal(word, crc32c_extend(0, bytes, 332));
}

static void a_format_to_come_is_refused(void **state)
{
    uint8_t bytes[SHARD_FILE_HEADER_BYTES];
    uint32_t format;

    (void)state;
    shard_file_encode_header(bytes, &(struct shard_file_header){ .number = 1 });
    assert_null(shard_file_decode_format(bytes, &format));
    assert_int_equal(format, SHARD_FILE_FORMAT);
    bytes[8] = SHARD_FILE_FORMAT_DROP;
    assert_null(shard_file_decode_format(bytes, &format));
    bytes[8] = SHARD_FILE_FORMAT_DROP + 1;
    assert_non_null(strstr(shard_file_decode_format(bytes, &format), "not 1 to 4"));
}

static void dropped_tables_have_one_record_for_a_row_of_them(void **state)
{
    const struct shard_file_table table = { .n_dropped = 7 };
    uint8_t bytes[SHARD_FILE_TABLE_BYTES], damaged[SHARD_FILE_TABLE_BYTES];
    struct shard_file_table ret;
    struct err why;

    (void)state;
    shard_file_encode_table(bytes, &table);
    assert_null(shard_file_decode_table(bytes, SHARD_FILE_FORMAT_DROP, &ret, &why));
    assert_int_equal(ret.n_dropped, 7);
    assert_non_null(shard_file_decode_table(bytes, SHARD_FILE_FORMAT, &ret, &why));
    for (size_t i = 0; i < 8 * sizeof bytes; i++) {
        memcpy(damaged, bytes, sizeof bytes);
        damaged[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_non_null(shard_file_decode_table(damaged, SHARD_FILE_FORMAT_DROP, &ret, &why));
    }
}

/* A lie about flags would be one about table.c's own. */
static void flags_in_a_file_are_left_out(void **state)
{
    uint8_t bytes[SHARD_FILE_ROW_HEAD_BYTES] = { 0 };
    struct shard_file_reader_chunk piece = {
        .what = SHARD_FILE_ROWS, .n_items = 1, .item_bytes = sizeof bytes, .bytes = bytes
    };
    uint64_t key, stamp = row_stamp(6, 5, 0xff);

    (void)state;
    memcpy(bytes + 8, &stamp, 8);
    (void)shard_file_reader_row(&piece, 0, &key, &stamp);
    assert_true(stamp == row_stamp(6, 5, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_truth_is_read),
        cmocka_unit_test(a_header_that_lies_is_refused),
        cmocka_unit_test(a_table_that_lies_is_refused),
        cmocka_unit_test(chunks_that_lie_are_refused),
        cmocka_unit_test(rows_that_lie_are_refused),
        cmocka_unit_test(a_footer_that_lies_is_refused),
        cmocka_unit_test(a_format_to_come_is_refused),
        cmocka_unit_test(dropped_tables_have_one_record_for_a_row_of_them),
        cmocka_unit_test(flags_in_a_file_are_left_out),
        cmocka_unit_test(a_records_bytes_are_those_of_the_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
