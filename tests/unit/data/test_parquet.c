/*
 * Parquet files of three writers against the same rows as text: every number and key, bit for bit, however the rows
 * are shared out, shuffled, skipped or cached.
 */
#include "tests/unit/data/parquet_bench.h"
#include "worker/data/data_loader.h"
#include "worker/data/moments.h"
#include "worker/data/parquet_file.h"
#include "worker/data/parquet_token.h"

#define TEXT_PATH PARQUET_BENCH_FOLDER "rows.tsv.gz"

/* All columns, but for hyparquet's, which has no LISTs and no numbers over 2^63. */
static const char *const files[] = { "duckdb-snappy.parquet", "duckdb-zstd.parquet",
                                     "duckdb-gzip.parquet",   "duckdb-v2.parquet",
                                     "arrow-v1.parquet",      "arrow-v2.parquet",
                                     "arrow-plain.parquet",   "arrow-delta.parquet",
                                     "hyparquet.parquet" };

static struct schema_text text_for(const char *file)
{
    struct schema_text text = parquet_bench_text;

    if (strcmp(file, "hyparquet.parquet") == 0)
        text.categorical = "city,token,item,small,weight";
    return text;
}

/* Each second field has a hashing space, unless it is 0. */
static void assert_same_in(const char *file, const struct schema_text *text,
                           const struct data_loader_options *o, uint64_t space)
{
    struct schema *schema = parquet_bench_schema(text, TEXT_PATH);
    struct parquet_bench_sum want, got;
    char path[FIXTURE_PATH_MAX];
    struct err err, why;
    int status;

    for (uint32_t f = 0; f < schema_n_fields(schema); f += 2)
        schema_set_space(schema, f, space);
    snprintf(path, sizeof path, PARQUET_BENCH_FOLDER "%s", file);
    status = parquet_bench_pass(schema, TEXT_PATH, o, &want, &err);
    if (status != parquet_bench_pass(schema, path, o, &got, &why))
        fail_msg("%s: '%s', as text '%s'", file, why.text, err.text);
    if (want.hash != got.hash || want.rows != got.rows || want.batches != got.batches)
        fail_msg("%s: not the same rows", file);
    assert_int_equal(want.bad_rows, got.bad_rows);
    /* "FILE:LINE: why": the text has a header. */
    if (got.bad_rows)
        assert_string_equal(strstr(strstr(want.bad_row, ".gz:"), ": "),
                            strstr(strstr(got.bad_row, ".parquet:"), ": "));
    schema_free(schema);
}

static void assert_same_with(const char *file, const struct schema_text *text,
                             const struct data_loader_options *o)
{
    assert_same_in(file, text, o, 0);
}

static const struct data_loader_options all_rows = { .labelled = true,
                                                     .by_rows = true,
                                                     .bad_rows_max = 1000 };

static void every_file_has_the_rows_of_the_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct schema_text text = text_for(files[i]);

        assert_same_with(files[i], &text, &all_rows);
        assert_same_in(files[i], &text, &all_rows, 3);
        text.inner_separator = "";
        text.categorical = "city,token,item,small,weight"; /* no lists */
        assert_same_in(files[i], &text, &all_rows, 3);
        text = text_for(files[i]);
        text.missing_as = SCHEMA_MISSING_SKIP;
        assert_same_with(files[i], &text, &all_rows);
        text.numeric_as = SCHEMA_RAW;
        text.missing = "x";
        assert_same_with(files[i], &text, &all_rows);
    }
}

static void any_share_window_and_position_of_a_pass_gives_the_rows_of_the_text(void **state)
{
    const uint64_t seed = fixture_seed("parquet shares");
    uint64_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        const char *file = files[i % COUNT_OF(files)];
        const struct schema_text text = text_for(file);
        const struct data_loader_options o = { .labelled = true,
                                               .bad_rows_max = 1000,
                                               .by_rows = fixture_draw(seed, &n, 5) > 0,
                                               .n_ranks = 1 + fixture_draw(seed, &n, 4),
                                               .rank = 0,
                                               .batch = 1 + fixture_draw(seed, &n, 40),
                                               .shuffle_rows =
                                                   fixture_draw(seed, &n, 3) ? 0 : 20,
                                               .seed = i,
                                               .skip = fixture_draw(seed, &n, 4) };
        struct data_loader_options own = o;

        own.rank = fixture_draw(seed, &n, o.n_ranks);
        own.range.first_row = fixture_draw(seed, &n, 2) * fixture_draw(seed, &n, 100);
        own.range.end_row =
            fixture_draw(seed, &n, 2) * (own.range.first_row + 1 + fixture_draw(seed, &n, 80));
        assert_same_with(file, &text, &own);
    }
}

/* Numbers where text stands, a category as a number, a label of neither: the text's sentences. */
static void a_malformed_row_is_refused_as_the_text_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct schema_text text = text_for(files[i]);

        text.numeric = "count,token,rate";
        text.categorical = "item,small";
        assert_same_with(files[i], &text, &all_rows);
        text.numeric = "count";
        text.label = "small";
        text.categorical = "item";
        assert_same_with(files[i], &text, &all_rows);
        text.label = "city";
        assert_same_with(files[i], &text, &all_rows);
        text.label_positive = "Oslo,Kyiv";
        assert_same_with(files[i], &text, &all_rows);
        text.label = "label";
        text.bucketise = "city,spread";
        assert_same_with(files[i], &text, &all_rows);
    }
}

static void rows_from_a_cache_are_the_same(void **state)
{
    struct data_loader_options o = all_rows;
    struct fixture_folder folder;

    (void)state;
    fixture_folder_new(&folder);
    o.data_cache = folder.path;
    for (size_t i = 0; i < COUNT_OF(files) * 2; i++) {
        const struct schema_text text = text_for(files[i % COUNT_OF(files)]);

        assert_same_with(files[i % COUNT_OF(files)], &text, &o);
    }
    fixture_folder_free(&folder);
}

static void means_are_those_of_the_text(void **state)
{
    struct schema_text text = parquet_bench_text;

    (void)state;
    text.numeric_as = SCHEMA_STANDARDISE;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct schema *schema;
        float want[10], got[10];
        char path[FIXTURE_PATH_MAX], *paths[2] = { path, (char *)(uintptr_t)TEXT_PATH };
        struct err err;

        text.categorical = text_for(files[i]).categorical;
        schema = parquet_bench_schema(&text, TEXT_PATH);
        snprintf(path, sizeof path, PARQUET_BENCH_FOLDER "%s", files[i]);
        assert_int_equal(moments_measure(schema, NULL, paths, 1, 1000, got, got + 5, &err), 0);
        assert_int_equal(
            moments_measure(schema, NULL, paths + 1, 1, 1000, want, want + 5, &err), 0);
        assert_memory_equal(want, got, sizeof want);
        schema_set_moments(schema, want, want + 5);
        schema_free(schema);
        assert_same_with(files[i], &text, &all_rows);
    }
}

static void a_parquet_file_says_what_its_columns_are(void **state)
{
    struct schema_text text = parquet_bench_text;
    struct schema *of_text = parquet_bench_schema(&text, TEXT_PATH), *own;
    struct parquet_bench_sum want, got;
    uint64_t n_rows;
    char *paths[] = { (char[]){ PARQUET_BENCH_FOLDER "arrow-v1.parquet" },
                      (char[]){ PARQUET_BENCH_FOLDER "duckdb-v2.parquet" } };
    struct err err;

    (void)state;
    text.header = false;
    own = parquet_bench_schema(&text, PARQUET_BENCH_FOLDER "duckdb-snappy.parquet");
    assert_int_equal(schema_n_fields(own), 9);
    assert_string_equal(schema_field_name(own, 6), "history");
    assert_int_equal(parquet_bench_pass(of_text, TEXT_PATH, &all_rows, &want, &err), 0);
    assert_int_equal(parquet_bench_pass(own, paths[0], &all_rows, &got, &err), 0);
    assert_int_equal(want.hash, got.hash);
    assert_int_equal(data_loader_count_rows(paths, 2, own, &n_rows, &err), 0);
    assert_int_equal(n_rows, 2 * PARQUET_BENCH_ROWS);
    schema_free(own);
    schema_free(of_text);
}

/* Positions are those of the file; names given by hand are looked up in it. */
static void columns_are_found_by_position_and_by_names_that_are_given(void **state)
{
    const struct schema_text by_position = {
        .delimiter = ",", .label = "0", .numeric = "1-2", .categorical = "6-8"
    };
    const struct schema_text by_name = { .delimiter = ",",
                                         .columns = "label,token,count,item,total,city",
                                         .label = "label",
                                         .numeric = "count,total",
                                         .categorical = "token,item,city" };
    struct schema_text text = parquet_bench_text;
    struct schema *a = parquet_bench_schema(&by_position,
                                            PARQUET_BENCH_FOLDER "duckdb-v2.parquet"),
                  *b;
    struct parquet_bench_sum of_a, of_b, of_text;
    struct err err;

    (void)state;
    text.numeric = "count,total";
    text.categorical = "city,token,item";
    text.bucketise = "";
    b = parquet_bench_schema(&text, TEXT_PATH);
    assert_int_equal(
        parquet_bench_pass(a, PARQUET_BENCH_FOLDER "duckdb-v2.parquet", &all_rows, &of_a, &err),
        0);
    assert_int_equal(parquet_bench_pass(b, TEXT_PATH, &all_rows, &of_text, &err), 0);
    assert_int_equal(of_a.hash, of_text.hash);
    schema_free(a);
    schema_free(b);
    a = parquet_bench_schema(&by_name, PARQUET_BENCH_FOLDER "duckdb-v2.parquet");
    assert_int_equal(
        parquet_bench_pass(a, PARQUET_BENCH_FOLDER "arrow-v2.parquet", &all_rows, &of_a, &err),
        0);
    assert_int_equal(
        parquet_bench_pass(a, PARQUET_BENCH_FOLDER "hyparquet.parquet", &all_rows, &of_b, &err),
        0);
    assert_int_equal(of_a.hash, of_b.hash);
    assert_int_equal(of_a.rows, PARQUET_BENCH_ROWS);
    schema_free(a);
}

static void assert_refused(const char *file, const struct schema_text *text,
                           const char *sentence)
{
    struct schema *schema = NULL;
    struct parquet_bench_sum sum;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    int status;

    snprintf(path, sizeof path, PARQUET_BENCH_FOLDER "%s", file);
    status = schema_open(text, NULL, path, &schema, &err);
    if (!status)
        status = parquet_bench_pass(schema, path, &all_rows, &sum, &err);
    assert_int_equal(status, PS_EDATA);
    fixture_assert_says(&err, sentence);
    schema_free(schema);
}

static void what_cannot_be_read_is_named_in_a_sentence(void **state)
{
    static const char *const types[][2] = {
        { "day", "'day' is a DATE" },     { "amount", "'amount' is a DECIMAL" },
        { "pair", "'pair' is a STRUCT" }, { "nested", "'nested' is a nested LIST" },
        { "pairs", "'pairs' is a MAP" },  { "at", "'at' is a TIMESTAMP" }
    };
    struct schema_text text = { .delimiter = ",", .label = "label" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        text.categorical = types[i][0];
        assert_refused("duckdb-snappy.parquet", &text, types[i][1]);
    }
    text.categorical = "never,flag";
    text.numeric = "history";
    assert_refused("duckdb-snappy.parquet", &text,
                   "'history' is a LIST, which can be categorical only, not numeric");
    text.numeric = "";
    text.bucketise = "history";
    assert_refused("duckdb-snappy.parquet", &text, "'history' is a LIST");
    text.bucketise = "";
    text.categorical = "city";
    assert_refused("duckdb-lz4.parquet", &text,
                   "'label' is packed with LZ4_RAW; snappy, gzip and zstd can be read");
    text.columns = "label,city,nothing";
    text.categorical = "city,nothing";
    assert_refused("duckdb-zstd.parquet", &text,
                   "no column is called 'nothing'; there are label, count, total");
}

static void a_parquet_pipe_is_refused(void **state)
{
    size_t n_bytes;
    uint8_t *bytes = parquet_bench_file("duckdb-zstd.parquet", &n_bytes);
    struct input_pipes *pipes = input_pipes_new();
    struct schema *schema = NULL;
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    int ends[2];

    (void)state;
    fixture_folder_new(&folder);
    assert_int_equal(pipe(ends), 0);
    assert_true(write(ends[1], bytes, 4096) == 4096);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    assert_int_equal(schema_open(&parquet_bench_text, pipes, path, &schema, &err), PS_EDATA);
    fixture_assert_says(&err,
                        "is Parquet, which is read from its end: name a file, not a pipe");
    input_pipes_free(pipes);
    close(ends[0]);
    fixture_folder_free(&folder);
    free(bytes);
}

/* Text may begin with the same four letters. */
static void text_that_begins_as_parquet_does_is_text(void **state)
{
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];

    (void)state;
    fixture_folder_new(&folder);
    fixture_write_text(&folder, "text", "PAR1,a,b\n1,2,3\n", path);
    assert_false(parquet_file_is_one(path));
    assert_true(parquet_file_is_one(PARQUET_BENCH_FOLDER "arrow-plain.parquet"));
    fixture_folder_free(&folder);
}

static void half_floats_are_read(void **state)
{
    struct schema_text text = {
        .delimiter = ",", .label = "label", .numeric = "rate", .numeric_as = SCHEMA_RAW
    };
    struct parquet_bench_sum sum;
    struct schema *schema =
        parquet_bench_schema(&text, PARQUET_BENCH_FOLDER "hyparquet-half.parquet");
    struct err err;

    (void)state;
    assert_int_equal(parquet_bench_pass(schema, PARQUET_BENCH_FOLDER "hyparquet-half.parquet",
                                        &all_rows, &sum, &err),
                     0);
    assert_int_equal(sum.rows, PARQUET_BENCH_ROWS);
    assert_int_equal(sum.bad_rows, 0);
    schema_free(schema);
}

/* As Python's repr() has it, and DuckDB's text. */
static void a_real_number_has_the_shortest_text(void **state)
{
    static const struct {
        double x;
        bool is_float;
        const char *text;
    } cases[] = { { 1, false, "1.0" },
                  { -0.0, false, "-0.0" },
                  { 0.1, false, "0.1" },
                  { (double)0.1f, true, "0.1" },
                  { 1e16, false, "1e+16" },
                  { 1e15, false, "1000000000000000.0" },
                  { 1e-5, false, "1e-05" },
                  { 1.5e300, false, "1.5e+300" },
                  { 0.0001, false, "0.0001" },
                  { 0.00123, false, "0.00123" },
                  { -123.25, false, "-123.25" },
                  { (double)123456789.0f, true, "123456790.0" },
                  { 16777216, true, "16777216.0" },
                  { 5e-324, false, "5e-324" },
                  { 1.0 / 3, false, "0.3333333333333333" },
                  { 2.5e-100, false, "2.5e-100" },
                  { 100, false, "100.0" },
                  { -7, true, "-7.0" },
                  { 0, false, "0.0" },
                  { 1.7976931348623157e308, false, "1.7976931348623157e+308" } };
    char to[PARQUET_TOKEN_BYTES], space[PARQUET_TOKEN_BYTES];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        double x = cases[i].x;
        struct line_parser_span token =
            parquet_token_of(cases[i].is_float ? PARQUET_FLOAT : PARQUET_DOUBLE,
                             &(struct parquet_values){ .n = 1, .reals = &x }, 0, space);

        assert_int_equal(parquet_token_real(x, cases[i].is_float, to), strlen(cases[i].text));
        assert_string_equal(to, cases[i].text);
        assert_int_equal(token.len, strlen(cases[i].text));
        assert_memory_equal(token.at, to, token.len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_has_the_rows_of_the_text),
        cmocka_unit_test(any_share_window_and_position_of_a_pass_gives_the_rows_of_the_text),
        cmocka_unit_test(a_malformed_row_is_refused_as_the_text_is),
        cmocka_unit_test(rows_from_a_cache_are_the_same),
        cmocka_unit_test(means_are_those_of_the_text),
        cmocka_unit_test(a_parquet_file_says_what_its_columns_are),
        cmocka_unit_test(columns_are_found_by_position_and_by_names_that_are_given),
        cmocka_unit_test(what_cannot_be_read_is_named_in_a_sentence),
        cmocka_unit_test(a_parquet_pipe_is_refused),
        cmocka_unit_test(text_that_begins_as_parquet_does_is_text),
        cmocka_unit_test(half_floats_are_read),
        cmocka_unit_test(a_real_number_has_the_shortest_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
