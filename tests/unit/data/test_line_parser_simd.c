/*
 * The quick way through a row against the plain one: the same batch, and never a row that the
 * plain way refuses.
 */
#include "tests/unit/data/bench.h"

#include <math.h>

#include "worker/data/line_parser_simd.h"
#include "worker/data/line_reader.h"

#define LINE_MAX_BYTES 6000u

/* A schema, and its plan once plain and once with each build's quick way. */
struct race {
    struct schema *schema;
    struct line_parser_plan plain, quick[SIMD_END];
    struct batch expected, found;
    uint64_t n_quick; /* rows that the quick way took */
};

static void race_new(struct race *r, const struct schema_text *text, const char *first_line)
{
    memset(r, 0, sizeof *r);
    r->schema = fixture_schema(text, first_line);
    r->plain = *schema_plan(r->schema);
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
        r->quick[s] = r->plain;
        r->quick[s].simd = line_parser_simd_fits(&r->plain) && simd_runs(s)
                               ? line_parser_simd_new(&r->plain, s)
                               : NULL;
    }
    r->plain.simd = NULL;
    assert_int_equal(batch_init(&r->expected, 4, r->plain.n_numeric, r->plain.n_fields), 0);
    assert_int_equal(batch_init(&r->found, 4, r->plain.n_numeric, r->plain.n_fields), 0);
}

static void race_free(struct race *r)
{
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++)
        free((struct line_parser_simd *)(uintptr_t)r->quick[s].simd);
    batch_deinit(&r->expected);
    batch_deinit(&r->found);
    schema_free(r->schema);
}

static void assert_same_batch(const struct batch *a, const struct batch *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_keys, b->n_keys);
    assert_memory_equal(a->label, b->label, a->n * sizeof *a->label);
    assert_memory_equal(a->starts, b->starts, (a->n * a->n_fields + 1) * sizeof *a->starts);
    if (a->n_numeric)
        assert_memory_equal(a->numeric, b->numeric, a->n * a->n_numeric * sizeof *a->numeric);
    if (a->n_keys)
        assert_memory_equal(a->keys, b->keys, a->n_keys * sizeof *a->keys);
}

/* Two rows into a batch each, so that the second has another in front. Blocks of just the line's
 * size, so that ASan sees a read past either end. */
static void race_line(struct race *r, const char *bytes, size_t len)
{
    char *line = malloc(len ? len : 1);
    struct err expected_why = { 0 }, why = { 0 };
    int expected = 0;

    assert_non_null(line);
    batch_clear(&r->expected);
    for (int i = 0; i < 2; i++) {
        memcpy(line, bytes, len);
        expected = line_parser_parse(&r->plain, line, len, &r->expected, &expected_why);
    }
    memcpy(line, bytes, len);
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
        if (!r->quick[s].simd)
            continue;
        batch_clear(&r->found);
        for (int i = 0; i < 2; i++) {
            bool taken = line_parser_simd_try(&r->quick[s], line, len, &r->found);

            assert_memory_equal(line, bytes, len);
            assert_false(taken && expected);
            r->n_quick += taken;
            if (!taken)
                assert_int_equal(
                    line_parser_simd_parse(&r->quick[s], line, len, &r->found, &why), expected);
        }
        assert_same_batch(&r->expected, &r->found);
        if (expected)
            assert_string_equal(why.text, expected_why.text);
    }
    free(line);
}

static void race_text(struct race *r, const char *line)
{
    race_line(r, line, strlen(line));
}

static void numbers_and_tokens_of_every_length_and_shape_are_the_same(void **state)
{
    static const char *const numbers[] = {
        "",         "0",        "00",        "-0",   "-",         "--1",      "+5",
        "7",        "-1",       "4095",      "4096", "65535",     "65536",    "1234567",
        "12345678", "-1234567", "-12345678", "1e3",  "123456789", "99999999", "0.5",
        ".5",       "5.",       " 5",        "5 ",   "1:",        "1/",       "12a",
        "/1",       ":1",       "nan",       "inf",  "0x10",      "1e400",    "1e39",
        "-1e39",    "1-2",      "9999999-",  "\xb1", "1\xb1",     "\x80\x80", "000000000001",
    };
    static const char *const ends[] = { "", "x", "1234567", "12345678", "68fd1e64,80e26c9b" };
    struct race r;

    (void)state;
    race_new(&r, &bench_small, NULL);
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        for (size_t j = 0; j < COUNT_OF(ends); j++) {
            char line[200];

            snprintf(line, sizeof line, "1,%s,%s,,%s", numbers[i], numbers[(i + j) % 42],
                     ends[j]);
            race_text(&r, line);
            snprintf(line, sizeof line, "0,3,%s,%s,%.8s", numbers[i], ends[j], ends[j]);
            race_text(&r, line);
        }
    for (size_t n = 0; n < 300; n++) {
        char line[700];

        snprintf(line, sizeof line, "0,1,2,%.*s,%.*s", (int)n, "", (int)n, "");
        memset(line + 6, 'a', n);
        line[6 + n] = ',';
        memset(line + 7 + n, 'b', n);
        race_line(&r, line, 7 + 2 * n);
        line[6 + n / 2] = '\0';
        race_line(&r, line, 7 + 2 * n);
    }
    race_free(&r);
}

static void labels_that_are_no_digit_go_the_plain_way(void **state)
{
    static const char *const lines[] = {
        "",           "0",       ",1,2,a,b",   "2,1,2,a,b",   "1.0,1,2,a,b", "+1,1,2,a,b",
        "1 ,1,2,a,b", "1,1,2,a", "1,1,2,a,b,", "1,1,2,a,b,c", "1,,,,",       ",,,,"
    };
    struct race r;

    (void)state;
    race_new(&r, &bench_small, NULL);
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        race_text(&r, lines[i]);
    race_free(&r);
}

/* A line in Criteo's layout, mostly well formed. */
static size_t random_line(char *line, uint64_t seed, uint64_t *counter)
{
    static const char odd[] = "\t\t\t01-.e+ x\n\r\"\x80,";
    size_t n = (size_t)sprintf(line, "%u", fixture_draw(seed, counter, 2));

    for (int i = 0; i < 13; i++) {
        uint32_t kind = fixture_draw(seed, counter, 8);

        line[n++] = '\t';
        if (kind > 1)
            n += (size_t)sprintf(line + n, "%s%u", kind == 2 ? "-" : "",
                                 fixture_draw(seed, counter, 1u << (4 * kind - 4)));
    }
    for (int i = 0; i < 26; i++) {
        uint32_t kind = fixture_draw(seed, counter, 20);

        line[n++] = '\t';
        if (kind)
            n += (size_t)sprintf(line + n, "%0*x", kind < 15 ? 8 : (int)kind,
                                 fixture_draw(seed, counter, 1u << 31));
    }
    for (uint32_t i = fixture_draw(seed, counter, 4); i == 1;
         i = fixture_draw(seed, counter, 4))
        line[fixture_draw(seed, counter, (uint32_t)n)] =
            odd[fixture_draw(seed, counter, sizeof odd)];
    if (fixture_draw(seed, counter, 20) == 0)
        n = fixture_draw(seed, counter, (uint32_t)n + 1);
    return n;
}

static void random_lines_are_the_same_with_every_transform(void **state)
{
    static const enum schema_numeric transforms[] = { SCHEMA_LOG1P, SCHEMA_STANDARDISE,
                                                      SCHEMA_RAW };
    uint64_t seed = fixture_seed(__func__), counter = 0;
    char line[LINE_MAX_BYTES];

    (void)state;
    for (size_t t = 0; t < COUNT_OF(transforms); t++) {
        struct schema_text text = { .preset = "criteo", .numeric_as = transforms[t] };
        struct race r;

        race_new(&r, &text, NULL);
        for (int i = 0; i < 5000; i++)
            race_line(&r, line, random_line(line, seed, &counter));
        assert_true(r.n_quick > 5000);
        race_free(&r);
    }
}

static void a_missing_number_that_is_not_0_is_the_same(void **state)
{
    struct race r;

    (void)state;
    race_new(&r, &bench_small, NULL);
    r.plain.numeric_missing = 7;
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++)
        r.quick[s].numeric_missing = 7;
    race_text(&r, "1,,3,a,b");
    assert_true(r.expected.numeric[0] == 7.0f);
    race_free(&r);
}

static void plans_with_more_to_them_have_no_quick_way(void **state)
{
    struct schema_text texts[7];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        texts[i] = bench_small;
    texts[0].quote = "'";
    texts[1].delimiter = ",\\s";
    texts[2].missing = "?";
    texts[3].missing_as = SCHEMA_MISSING_SKIP;
    texts[4].inner_separator = "|";
    texts[5].label_positive = "yes";
    texts[6].bucketise = "a";
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct schema *s = fixture_schema(&texts[i], NULL);

        assert_false(line_parser_simd_fits(schema_plan(s)));
        assert_null(schema_plan(s)->simd);
        schema_free(s);
    }
}

static void every_build_of_a_kernel_is_the_plain_one(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    uint64_t expected[LINE_PARSER_SIMD_MARKS_WORDS], found[LINE_PARSER_SIMD_MARKS_WORDS];

    (void)state;
    for (int round = 0; round < 3000; round++) {
        size_t len =
            fixture_draw(seed, &counter, round % 10 ? 300 : LINE_PARSER_SIMD_MARKS_LEN_MAX + 1);
        char *line = malloc(len + 1);
        bool whole;

        for (size_t i = 0; i < len; i++)
            line[i] = fixture_draw(seed, &counter, 9) ? 'a' : ',';
        if (len && fixture_draw(seed, &counter, 4) == 0)
            line[fixture_draw(seed, &counter, (uint32_t)len)] = '\0';
        line = realloc(line, len ? len : 1);
        whole = line_parser_simd_marks(SIMD_PLAIN)(line, len, ',', expected);
        assert_true(whole == !memchr(line, '\0', len));
        for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
            if (!simd_runs(s))
                continue;
            assert_true(line_parser_simd_marks(s)(line, len, ',', found) == whole);
            if (whole)
                assert_memory_equal(expected, found, (len + 63) / 64 * sizeof *found);
        }
        free(line);
    }
}

static void every_build_computes_the_same_words(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    uint64_t flips[40], missing[40];
    struct line_parser_simd_words words[SIMD_END];

    (void)state;
    for (uint32_t f = 0; f < 40; f++) {
        flips[f] = line_parser_simd_flip(f);
        missing[f] = XXH3_64bits_withSeed("", 0, f);
    }
    for (int round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < 40; i++) {
            char bytes[9] = "";
            uint32_t len = fixture_draw(seed, &counter, 10);

            for (uint32_t j = 0; j < 8; j++)
                bytes[j] = (char)("0123456789-,/:x"[fixture_draw(seed, &counter,
                                                                 round % 2 ? 10 : 15)]);
            for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
                memcpy(&words[s].words[i], bytes, 8);
                words[s].lens[i] = bytes[0] == '-' && len == 0 ? 1 : len;
            }
        }
        for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
            if (!simd_runs(s))
                continue;
            line_parser_simd_kernels(s)->integers(&words[s], 33);
            assert_memory_equal(words[SIMD_PLAIN].values, words[s].values, 40 * 8);
        }
        for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
            if (!simd_runs(s))
                continue;
            line_parser_simd_kernels(s)->keys(&words[s], flips, missing, 33);
            assert_memory_equal(words[SIMD_PLAIN].values, words[s].values, 40 * 8);
        }
    }
}

static void the_criteo_sample_takes_the_quick_way_and_is_the_same(void **state)
{
    const char *root = getenv("PS_SHARED"), *ci = getenv("CI");
    char path[FIXTURE_PATH_MAX];
    struct line_reader_line line;
    struct line_reader *reader;
    uint64_t n_rows = 0;
    struct race r;
    struct err err;

    (void)state;
    snprintf(path, sizeof path, "%s/data/criteo/criteo_dev_110000.tsv.zst",
             root ? root : "../shared");
    if (access(path, R_OK) != 0) {
        if (ci && strcmp(ci, "true") == 0)
            fail_msg("%s is not there", path);
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    race_new(&r, &(struct schema_text){ .preset = "criteo", .keys = SCHEMA_KEYS_BY_NAME },
             NULL);
    assert_int_equal(line_reader_open(path, &reader, &err), 0);
    while (line_reader_next(reader, &line, &err) == 0 && line.bytes && n_rows < 30000) {
        race_line(&r, line.bytes, line.len);
        n_rows++;
    }
    assert_true(r.n_quick >= 2 * n_rows);
    line_reader_close(reader);
    race_free(&r);
}

/* With seeds by name, and after a change of them. */
static void whatever_the_seeds_the_keys_are_the_same(void **state)
{
    static const char *const tokens[] = { "",        "a",    "abc",      "68fd",
                                          "68fd1e6", "bcde", "68fd1e64", "a longer token",
                                          "12345" };
    struct err err;
    struct race r;

    (void)state;
    race_new(&r,
             &(struct schema_text){
                 .preset = "criteo", .keys = SCHEMA_KEYS_BY_NAME, .shared = "C1,C9" },
             NULL);
    for (uint32_t i = 0; i < 200; i++) {
        struct batch b = { 0 };
        char line[1000] = "1";
        size_t n;

        for (uint32_t c = 1; c < 40; c++)
            snprintf(line + strlen(line), 40, "\t%s",
                     c < 14 ? "7" : tokens[(i + c * (1 + i % 7)) % COUNT_OF(tokens)]);
        n = strlen(line);
        race_line(&r, line, n);
        /* The schema's own quick way, too: its constants change with schema_use_keys(). */
        assert_int_equal(schema_use_keys(r.schema,
                                         i % 2 ? SCHEMA_KEYS_BY_NAME : SCHEMA_KEYS_BY_POSITION,
                                         &err),
                         0);
        assert_int_equal(batch_init(&b, 2, 13, 26), 0);
        assert_true(line_parser_simd_try(schema_plan(r.schema), line, n, &b));
        assert_int_equal(line_parser_parse(schema_plan(r.schema), line, n, &b, &err), 0);
        assert_memory_equal(b.keys, b.keys + 26, 26 * sizeof *b.keys);
        batch_deinit(&b);
    }
    race_free(&r);
}

/* hash_mix2(seed, hash modulo the space), whichever way a line takes. */
static void a_hashing_space_bounds_the_keys_of_a_field(void **state)
{
    struct schema *schema = fixture_schema(
        &(struct schema_text){ .preset = "criteo", .keys = SCHEMA_KEYS_BY_NAME }, NULL);
    const struct line_parser_plan *plan = schema_plan(schema);
    char line[1000] = "1";
    struct batch b = { 0 };
    struct err err;
    size_t n;

    (void)state;
    schema_set_space(schema, 1, 5);
    schema_set_space(schema, 25, 1000);
    for (uint32_t c = 1; c < 40; c++)
        snprintf(line + strlen(line), 40, "\t%s", c < 14 ? "7" : c == 39 ? "" : "68fd1e64");
    n = strlen(line);
    assert_int_equal(batch_init(&b, 2, 13, 26), 0);
    assert_true(line_parser_simd_try(plan, line, n, &b));
    assert_int_equal(line_parser_parse(plan, line, n, &b, &err), 0);
    assert_memory_equal(b.keys, b.keys + 26, 26 * sizeof *b.keys);
    for (uint32_t f = 0; f < 26; f++) {
        const uint64_t seed = plan->fields[f].seed,
                       hash = XXH3_64bits_withSeed("68fd1e64", f == 25 ? 0 : 8, seed);

        assert_true(b.keys[f] == (f == 1    ? hash_mix2(seed, hash % 5)
                                  : f == 25 ? hash_mix2(seed, hash % 1000)
                                            : hash));
    }
    batch_deinit(&b);
    schema_free(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_tokens_of_every_length_and_shape_are_the_same),
        cmocka_unit_test(labels_that_are_no_digit_go_the_plain_way),
        cmocka_unit_test(random_lines_are_the_same_with_every_transform),
        cmocka_unit_test(a_missing_number_that_is_not_0_is_the_same),
        cmocka_unit_test(plans_with_more_to_them_have_no_quick_way),
        cmocka_unit_test(every_build_of_a_kernel_is_the_plain_one),
        cmocka_unit_test(every_build_computes_the_same_words),
        cmocka_unit_test(whatever_the_seeds_the_keys_are_the_same),
        cmocka_unit_test(a_hashing_space_bounds_the_keys_of_a_field),
        cmocka_unit_test(the_criteo_sample_takes_the_quick_way_and_is_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
