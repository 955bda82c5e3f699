/* What a Parquet file is made of, part by part, against plain twins: Thrift, packings, runs, deltas. */
#include "tests/unit/data/fixture.h"

#include <math.h>

#include "common/bytes.h"
#include "worker/data/parquet_codec.h"
#include "worker/data/parquet_column.h"
#include "worker/data/parquet_decoder.h"
#include "worker/data/parquet_thrift.h"

static void put(struct bytes *to, const void *bytes, size_t n)
{
    uint8_t *at = bytes_reserve(to, n + 1);

    assert_non_null(at);
    memcpy(at, bytes, n);
    bytes_commit(to, n);
}

static void put_byte(struct bytes *to, unsigned byte)
{
    put(to, &(uint8_t){ (uint8_t)byte }, 1);
}

static void put_varint(struct bytes *to, uint64_t x)
{
    for (; x >= 128; x >>= 7)
        put_byte(to, (unsigned)(x & 127) | 128);
    put_byte(to, (unsigned)x);
}

static uint64_t zigzag(int64_t x)
{
    return (uint64_t)x << 1 ^ (x < 0 ? UINT64_MAX : 0);
}

/* A block of just these bytes, so that ASan sees a read past them. */
static uint8_t *exactly(const struct bytes *b)
{
    uint8_t *copy = memory_alloc(bytes_len(b) + (bytes_len(b) == 0));

    if (bytes_len(b))
        memcpy(copy, bytes_front(b), bytes_len(b));
    return copy;
}

/* ---- thrift ---- */

static void fields_of_a_struct_are_read_and_unknown_ones_skipped(void **state)
{
    /* 1: i32 -3 | 2: list<i32> 1 2 | 4: true | 5: struct { 1: "x" } | 30: binary "ab" | 31: map<i32, string> 1:"q" */
    static const uint8_t bytes[] = { 0x15, 0x05, 0x19, 0x25, 0x02, 0x04, 0x21, 0x1c,
                                     0x18, 0x01, 'x',  0x00, 0x08, 0x3c, 0x02, 'a',
                                     'b',  0x1b, 0x01, 0x58, 0x02, 0x01, 'q',  0x00 };
    struct parquet_thrift t = { .at = bytes, .end = bytes + sizeof bytes };
    struct parquet_thrift_field f = { 0 };
    size_t n;

    (void)state;
    assert_true(parquet_thrift_field(&t, &f) && f.id == 1);
    assert_int_equal(parquet_thrift_int(&t, &f), -3);
    assert_true(parquet_thrift_field(&t, &f) && f.id == 2);
    assert_int_equal(parquet_thrift_list(&t, &f, PARQUET_THRIFT_I32), 2);
    assert_int_equal(parquet_thrift_element(&t), 1);
    assert_int_equal(parquet_thrift_element(&t), 2);
    assert_true(parquet_thrift_field(&t, &f) && f.id == 4 && parquet_thrift_bool(&t, &f));
    assert_true(parquet_thrift_field(&t, &f) && f.id == 5);
    parquet_thrift_skip(&t, &f);
    assert_true(parquet_thrift_field(&t, &f) && f.id == 30);
    assert_memory_equal(parquet_thrift_binary(&t, &f, &n), "ab", 2);
    assert_true(parquet_thrift_field(&t, &f) && f.id == 31);
    parquet_thrift_skip(&t, &f);
    assert_false(parquet_thrift_field(&t, &f));
    assert_false(t.bad);
    assert_true(t.at == t.end);
}

static void structs_inside_each_other_without_end_are_refused(void **state)
{
    uint8_t bytes[100000];
    struct parquet_thrift t = { .at = bytes, .end = bytes + sizeof bytes };
    struct parquet_thrift_field f = { 0 };

    (void)state;
    memset(bytes, 0x1c, sizeof bytes); /* field 1, a struct */
    assert_true(parquet_thrift_field(&t, &f));
    parquet_thrift_skip(&t, &f);
    assert_true(t.bad && t.at == t.end);
    memset(bytes, 0x19, sizeof bytes); /* a list of a list */
    t = (struct parquet_thrift){ .at = bytes, .end = bytes + sizeof bytes };
    f = (struct parquet_thrift_field){ 0 };
    assert_true(parquet_thrift_field(&t, &f));
    parquet_thrift_skip(&t, &f);
    assert_true(t.bad);
}

static void any_bytes_come_to_an_end(void **state)
{
    const uint64_t seed = fixture_seed("parquet thrift");
    uint64_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t n_bytes = fixture_draw(seed, &n, 40);
        uint8_t *bytes = memory_alloc(n_bytes + 1u);
        struct parquet_thrift t = { .at = bytes, .end = bytes + n_bytes };
        struct parquet_thrift_field f = { 0 };

        for (uint32_t k = 0; k < n_bytes; k++)
            bytes[k] = (uint8_t)fixture_draw(seed, &n, fixture_draw(seed, &n, 2) ? 256 : 32);
        while (parquet_thrift_field(&t, &f))
            parquet_thrift_skip(&t, &f);
        assert_true(t.at <= t.end);
        free(bytes);
    }
}

/* ---- snappy ---- */

static bool unsnaps_to(const char *packed, size_t n_packed, const char *want)
{
    size_t n = strlen(want);
    uint8_t *dst = memory_alloc(n + 1), *from = memory_alloc(n_packed + 1);
    bool same;

    memcpy(from, packed, n_packed);
    same = parquet_codec_unsnappy(from, n_packed, dst, n) && memcmp(dst, want, n) == 0;
    free(dst);
    free(from);
    return same;
}

#define UNSNAPS(packed, want) assert_true(unsnaps_to(packed, sizeof(packed) - 1, want))
#define REFUSES(packed, want) assert_false(unsnaps_to(packed, sizeof(packed) - 1, want))

static void snappy_is_unpacked_and_damage_to_it_refused(void **state)
{
    (void)state;
    UNSNAPS("\x00", "");
    UNSNAPS("\x03\x08"
            "abc",
            "abc");
    UNSNAPS("\x0a\x04"
            "ab\x1e\x02\x00",
            "ababababab"); /* 8 bytes from 2 before: they overlap */
    UNSNAPS("\x08\x0c"
            "abcd\x01\x04",
            "abcdabcd");
    UNSNAPS("\x08\x0c"
            "abcd\x0f\x04\x00\x00\x00",
            "abcdabcd");
    UNSNAPS("\x05\xf0\x04"
            "abcde",
            "abcde"); /* a length behind the tag */
    REFUSES("", "");
    REFUSES("\x04\x08"
            "abc",
            "abcd"); /* fewer bytes than it says */
    REFUSES("\x02\x08"
            "abc",
            "ab"); /* more */
    REFUSES("\x03\x08"
            "ab",
            "abc"); /* cut short */
    REFUSES("\x0a\x04"
            "ab\x1e\x03\x00",
            "ababababab"); /* from before the beginning */
    REFUSES("\x0a\x04"
            "ab\x1e\x00\x00",
            "ababababab"); /* from nowhere */
    REFUSES("\x0a\x04"
            "ab\x1e\x02",
            "ababababab");
    REFUSES("\xff\xff\xff\xff\xff\x01", "a");
}

static void what_packed_bytes_can_hold_is_bounded(void **state)
{
    size_t n_bytes = 1 << 20, n;
    uint8_t *bytes = memory_alloc(n_bytes), *packed, *back = memory_alloc(n_bytes);

    (void)state;
    packed = fixture_gzip(bytes, n_bytes, &n);
    assert_true(parquet_codec_unpacked_max(PARQUET_CODEC_GZIP, n) >= n_bytes);
    assert_true(parquet_codec_unpack(PARQUET_CODEC_GZIP, packed, n, back, n_bytes));
    assert_false(parquet_codec_unpack(PARQUET_CODEC_GZIP, packed, n, back, n_bytes - 1));
    assert_false(parquet_codec_unpack(PARQUET_CODEC_GZIP, packed, n - 1, back, n_bytes));
    free(packed);
    packed = fixture_zstd(bytes, n_bytes, &n);
    assert_true(parquet_codec_unpacked_max(PARQUET_CODEC_ZSTD, n) >= n_bytes);
    assert_true(parquet_codec_unpack(PARQUET_CODEC_ZSTD, packed, n, back, n_bytes));
    assert_false(parquet_codec_unpack(PARQUET_CODEC_ZSTD, packed, n, back, n_bytes - 1));
    assert_true(parquet_codec_unpack(PARQUET_CODEC_NONE, bytes, 5, back, 5));
    assert_false(parquet_codec_unpack(PARQUET_CODEC_NONE, bytes, 5, back, 4));
    assert_string_equal(parquet_codec_refused(7), "LZ4_RAW");
    assert_string_equal(parquet_codec_refused(-1), "an unknown codec");
    assert_string_equal(parquet_codec_refused(6), "");
    free(packed);
    free(bytes);
    free(back);
}

/* ---- runs ---- */

static void put_bits(struct bytes *to, const uint32_t *values, uint32_t n, uint32_t width)
{
    uint8_t *bits = memory_alloc(n * width / 8 + 1u);

    for (uint64_t i = 0; i < n; i++)
        for (uint64_t b = 0; b < width; b++)
            bits[(i * width + b) / 8] |=
                (uint8_t)((values[i] >> b & 1) << ((i * width + b) % 8));
    put(to, bits, n * width / 8);
    free(bits);
}

/* Runs and groups of 8, as chance has it; returns how many values. */
static uint32_t put_runs(struct bytes *to, uint32_t *values, uint32_t n_max, uint32_t width,
                         uint64_t seed)
{
    const uint32_t mask = width == 32 ? UINT32_MAX : (UINT32_C(1) << width) - 1;
    uint64_t c = 0;
    uint32_t n = 0;

    while (n + 64 < n_max) {
        const uint32_t k = fixture_draw(seed, &c, 2) ? 8 * (1 + fixture_draw(seed, &c, 6)) : 0;
        const uint32_t n_run = 1 + fixture_draw(seed, &c, 40);

        for (uint32_t i = 0; i < (k ? k : n_run); i++)
            values[n + i] = k || i == 0 ? (uint32_t)hash_mix2(seed, c++) & mask : values[n];
        put_varint(to, k ? k / 8 << 1 | 1 : n_run << 1);
        if (k)
            put_bits(to, values + n, k, width);
        else
            put(to, &values[n], (width + 7) / 8);
        n += k ? k : n_run;
    }
    return n;
}

static void runs_of_every_width_are_read_and_skipped(void **state)
{
    const uint64_t seed = fixture_seed("parquet runs");
    uint32_t want[900], got[900];

    (void)state;
    for (uint32_t i = 0; i < 33 * 20; i++) {
        const uint32_t width = i % 33;
        struct bytes packed = { 0 };
        const uint32_t n = put_runs(&packed, want, COUNT_OF(want), width, seed + i);
        uint8_t *bytes = exactly(&packed);
        struct parquet_rle r;
        uint64_t c = 0;

        parquet_rle_init(&r, bytes, bytes + bytes_len(&packed), width);
        for (uint32_t at = 0; at < n;) {
            uint32_t k = 1 + fixture_draw(seed + i, &c, 60);

            k = k < n - at ? k : n - at;
            if (fixture_draw(seed + i, &c, 3) == 0) {
                assert_true(parquet_rle_skip(&r, k));
            } else if (!parquet_rle_take_run(&r, want[at], k)) {
                assert_true(parquet_rle_read(&r, got, k));
                assert_memory_equal(got, want + at, k * sizeof *got);
            }
            at += k;
        }
        assert_false(parquet_rle_read(&r, got, 1));
        free(bytes);
        bytes_deinit(&packed);
    }
}

/* ---- values ---- */

struct source {
    struct parquet_file_column column;
    struct bytes packed;
    uint8_t *bytes;
    struct parquet_decoder d;
};

static void source_begin(struct source *s, enum parquet_storage storage, enum parquet_type type,
                         enum parquet_encoding encoding, uint64_t n)
{
    s->column = (struct parquet_file_column){ .storage = storage, .type = type };
    s->bytes = exactly(&s->packed);
    s->d = (struct parquet_decoder){ 0 };
    assert_true(parquet_decoder_knows(&s->column, encoding));
    assert_true(parquet_decoder_begin(&s->d, &s->column, encoding, s->bytes,
                                      s->bytes + bytes_len(&s->packed), n));
}

static void source_end(struct source *s)
{
    parquet_decoder_deinit(&s->d);
    free(s->bytes);
    bytes_deinit(&s->packed);
}

/* Blocks of 128 in 4 miniblocks, as writers have it, with full ones at the end or without. */
static void put_deltas(struct bytes *to, const int64_t *x, uint32_t n)
{
    put_varint(to, 128);
    put_varint(to, 4);
    put_varint(to, n);
    put_varint(to, n ? zigzag(x[0]) : 0);
    for (uint32_t block = 1; block < n; block += 128) {
        const uint32_t n_block = n - block < 128 ? n - block : 128;
        uint64_t deltas[128] = { 0 };
        int64_t min = INT64_MAX;
        unsigned widths[4] = { 0 };

        for (uint32_t i = 0; i < n_block; i++) {
            int64_t delta = (int64_t)((uint64_t)x[block + i] - (uint64_t)x[block + i - 1]);

            min = delta < min ? delta : min;
        }
        for (uint32_t i = 0; i < n_block; i++) {
            deltas[i] = (uint64_t)x[block + i] - (uint64_t)x[block + i - 1] - (uint64_t)min;
            while (widths[i / 32] < 64 && deltas[i] >> widths[i / 32])
                widths[i / 32]++;
        }
        put_varint(to, zigzag(min));
        for (uint32_t m = 0; m < 4; m++)
            put_byte(to, widths[m]);
        for (uint32_t m = 0; m * 32 < n_block; m++) {
            uint8_t bits[256] = { 0 };

            for (uint64_t b = 0; b < 32 * widths[m]; b++)
                bits[b / 8] |= (uint8_t)((deltas[m * 32 + b / widths[m]] >> (b % widths[m]) & 1)
                                         << (b % 8));
            put(to, bits, 4 * widths[m]);
        }
    }
}

static void deltas_of_any_integers_come_back(void **state)
{
    const uint64_t seed = fixture_seed("parquet deltas");
    int64_t want[700], got[PARQUET_VALUES_MAX];

    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        struct parquet_values v = { .integers = got };
        struct source s = { 0 };
        uint64_t c = 0;
        const uint32_t n = 1 + fixture_draw(seed + i, &c, COUNT_OF(want));

        for (uint32_t k = 0; k < n; k++)
            want[k] = (int64_t)(hash_mix2(seed + i, c++) >> (i % 64)) *
                      (fixture_draw(seed, &c, 2) ? 1 : -1);
        put_deltas(&s.packed, want, n);
        source_begin(&s, PARQUET_STORAGE_INT64, PARQUET_INT, PARQUET_ENCODING_DELTA_INTEGERS,
                     n);
        for (uint32_t at = 0; at < n; at += v.n) {
            assert_int_equal(parquet_decoder_read(&s.d, n - at < 97 ? n - at : 97, &v), 0);
            assert_memory_equal(got, want + at, v.n * sizeof *got);
        }
        assert_int_equal(parquet_decoder_read(&s.d, 1, &v), PS_EDATA);
        source_end(&s);
    }
}

static const char *const words[] = { "a",     "",  "abc", "abcdefgh",
                                     "abcdx", "b", "bcd", "bcdbcdbcd" };

static void texts_behind_their_lengths_and_prefixes_come_back(void **state)
{
    const uint32_t n = COUNT_OF(words);

    (void)state;
    for (int prefixes = 0; prefixes < 2; prefixes++) {
        int64_t kept[COUNT_OF(words)] = { 0 }, lengths[COUNT_OF(words)];
        struct line_parser_span spans[PARQUET_VALUES_MAX];
        struct parquet_values v = { .texts = spans };
        struct source s = { 0 };

        for (uint32_t i = 0; i < n; i++) {
            while (prefixes && i && words[i][kept[i]] &&
                   words[i][kept[i]] == words[i - 1][kept[i]])
                kept[i]++;
            lengths[i] = (int64_t)strlen(words[i]) - kept[i];
        }
        if (prefixes)
            put_deltas(&s.packed, kept, n);
        put_deltas(&s.packed, lengths, n);
        for (uint32_t i = 0; i < n; i++)
            put(&s.packed, words[i] + kept[i], (size_t)lengths[i]);
        source_begin(
            &s, PARQUET_STORAGE_BYTES, PARQUET_TEXT,
            prefixes ? PARQUET_ENCODING_DELTA_PREFIXES : PARQUET_ENCODING_DELTA_LENGTHS, n);
        for (uint32_t at = 0; at < n; at += v.n) {
            assert_int_equal(parquet_decoder_read(&s.d, n - at < 3 ? n - at : 3, &v), 0);
            for (uint32_t i = 0; i < v.n; i++) {
                assert_int_equal(spans[i].len, strlen(words[at + i]));
                assert_memory_equal(spans[i].at, words[at + i], spans[i].len);
            }
        }
        source_end(&s);
    }
}

/* A million times the same text of half a MiB costs a page next to nothing. */
static void long_texts_come_a_few_at_once(void **state)
{
    int64_t kept[1000], lengths[1000] = { 500000 };
    struct line_parser_span spans[PARQUET_VALUES_MAX];
    struct parquet_values v = { .texts = spans };
    char *text = memory_alloc(500000);
    struct source s = { 0 };
    uint32_t n_calls = 0;

    (void)state;
    memset(text, 'x', 500000);
    for (uint32_t i = 0; i < 1000; i++)
        kept[i] = i ? 500000 : 0;
    put_deltas(&s.packed, kept, 1000);
    put_deltas(&s.packed, lengths, 1000);
    put(&s.packed, text, 500000);
    source_begin(&s, PARQUET_STORAGE_BYTES, PARQUET_TEXT, PARQUET_ENCODING_DELTA_PREFIXES,
                 1000);
    for (uint32_t at = 0; at < 1000; at += v.n, n_calls++) {
        assert_int_equal(parquet_decoder_read(&s.d, 1000 - at, &v), 0);
        assert_in_range(v.n, 1, 12);
        assert_memory_equal(spans[v.n - 1].at, text, 500000);
    }
    assert_true(n_calls > 80);
    source_end(&s);
    free(text);
}

static void plain_values_end_with_their_page(void **state)
{
    int64_t got[PARQUET_VALUES_MAX];
    struct parquet_values v = { .integers = got };
    struct source s = { 0 };

    (void)state;
    put(&s.packed, (int32_t[]){ -1, 7 }, 8);
    source_begin(&s, PARQUET_STORAGE_INT32, PARQUET_UINT, PARQUET_ENCODING_PLAIN, 3);
    assert_int_equal(parquet_decoder_read(&s.d, 2, &v), 0);
    assert_true(got[0] == UINT32_MAX && got[1] == 7);
    assert_int_equal(parquet_decoder_read(&s.d, 1, &v), PS_EDATA);
    source_end(&s);
    s = (struct source){ 0 };
    put_byte(&s.packed, 0x05);
    source_begin(&s, PARQUET_STORAGE_BOOLEAN, PARQUET_INT, PARQUET_ENCODING_PLAIN, 8);
    assert_int_equal(parquet_decoder_read(&s.d, 8, &v), 0);
    assert_true(got[0] == 1 && got[1] == 0 && got[2] == 1 && got[3] == 0);
    assert_int_equal(parquet_decoder_read(&s.d, 1, &v), PS_EDATA);
    source_end(&s);
}

static void half_floats_are_what_ieee_754_has(void **state)
{
    static const uint16_t halves[] = { 0x3c00, 0xc000, 0x0001, 0x7bff, 0x3555, 0x8000, 0x7c00 };
    static const double want[] = {
        1, -2, 5.9604644775390625e-8, 65504, 0.333251953125, -0.0, (double)INFINITY
    };
    double got[PARQUET_VALUES_MAX];
    struct parquet_values v = { .reals = got };
    struct source s = { 0 };

    (void)state;
    put(&s.packed, halves, sizeof halves);
    s.column = (struct parquet_file_column){ .storage = PARQUET_STORAGE_FIXED,
                                             .type = PARQUET_HALF,
                                             .value_bytes = 2 };
    s.bytes = exactly(&s.packed);
    assert_true(parquet_decoder_begin(&s.d, &s.column, PARQUET_ENCODING_PLAIN, s.bytes,
                                      s.bytes + sizeof halves, 7));
    assert_int_equal(parquet_decoder_read(&s.d, 7, &v), 0);
    assert_memory_equal(got, want, sizeof want);
    source_end(&s);
}

/* ---- a column ---- */

/* What is left of the group behind n_skip rows: rows, values. */
static void count(struct parquet_column *c, const struct parquet_file_chunk *chunk,
                  uint64_t n_skip, uint64_t ret[2])
{
    struct line_parser_span space[PARQUET_VALUES_MAX];
    struct parquet_values scratch = { .texts = space };
    const uint32_t *rep, *def;
    uint32_t n = 1;
    struct err err;

    ret[0] = ret[1] = 0;
    parquet_column_begin(c, chunk);
    assert_int_equal(parquet_column_skip(c, n_skip, &scratch, &err), 0);
    while (n > 0) {
        uint32_t n_values = 0;

        assert_int_equal(parquet_column_levels(c, 7, &rep, &def, &n, &err), 0);
        for (uint32_t i = 0; i < n; i++) {
            ret[0] += !rep || rep[i] == 0;
            n_values += !def || def[i] == c->type->def_max;
        }
        parquet_column_take(c, n);
        for (uint32_t i = 0; i < n_values; i += scratch.n)
            assert_int_equal(parquet_column_values(c, n_values - i, &scratch, &err), 0);
        ret[1] += n_values;
    }
}

/* Columns 6, a text that may be NULL, and 13, a LIST: of a file without dictionaries, 64 rows in its first group. */
static void rows_of_a_column_can_be_skipped_to_any_row(void **state)
{
    struct parquet_file *file = NULL;
    struct err err;

    (void)state;
    assert_int_equal(parquet_file_open("tests/data/parquet/arrow-plain.parquet", &file, &err),
                     0);
    for (uint32_t i = 6; i < 14; i += 7) {
        const struct parquet_file_column *column = parquet_file_column(file, i);
        struct parquet_column c;
        struct parquet_file_chunk chunk;
        uint64_t all[2], some[2], n_values = 0;

        parquet_column_init(&c, file, column);
        assert_int_equal(parquet_file_chunks(file, 0, &column, 1, &chunk, &err), 0);
        count(&c, &chunk, 0, all);
        assert_int_equal(all[0], 64);
        assert_true(all[1] > 30);
        for (uint64_t row = 64; row > 0; row--) {
            count(&c, &chunk, row, some);
            assert_int_equal(some[0], 64 - row);
            assert_true(some[1] >= n_values);
            n_values = some[1];
        }
        assert_true(n_values <= all[1]);
        parquet_column_begin(&c, &chunk);
        assert_int_equal(
            parquet_column_skip(
                &c, 65,
                &(struct parquet_values){
                    .texts = (struct line_parser_span[PARQUET_VALUES_MAX]){ { 0 } } },
                &err),
            PS_EDATA);
        fixture_assert_says(&err, "it has fewer rows than its row group");
        parquet_column_deinit(&c);
    }
    parquet_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_of_a_struct_are_read_and_unknown_ones_skipped),
        cmocka_unit_test(structs_inside_each_other_without_end_are_refused),
        cmocka_unit_test(any_bytes_come_to_an_end),
        cmocka_unit_test(snappy_is_unpacked_and_damage_to_it_refused),
        cmocka_unit_test(what_packed_bytes_can_hold_is_bounded),
        cmocka_unit_test(runs_of_every_width_are_read_and_skipped),
        cmocka_unit_test(deltas_of_any_integers_come_back),
        cmocka_unit_test(texts_behind_their_lengths_and_prefixes_come_back),
        cmocka_unit_test(long_texts_come_a_few_at_once),
        cmocka_unit_test(plain_values_end_with_their_page),
        cmocka_unit_test(half_floats_are_what_ieee_754_has),
        cmocka_unit_test(rows_of_a_column_can_be_skipped_to_any_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
