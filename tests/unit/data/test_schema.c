#include "tests/unit/data/fixture.h"

#include <errno.h>

static void the_criteo_preset_has_40_columns(void **state)
{
    struct schema *s = fixture_schema(&(struct schema_text){ .preset = "criteo" }, NULL);

    (void)state;
    assert_int_equal(schema_n_numeric(s), 13);
    assert_int_equal(schema_n_fields(s), 26);
    assert_int_equal(schema_plan(s)->n_columns, 40);
    assert_int_equal(schema_plan_unlabelled(s)->n_columns, 39);
    assert_true(schema_has_label(s));
    assert_false(schema_has_header(s));
    assert_false(schema_needs_moments(s));
    assert_string_equal(schema_numeric_name(s, 0), "I1");
    assert_string_equal(schema_field_name(s, 25), "C26");
    assert_int_equal(schema_field_column(s, 25), 39);
    schema_free(s);
}

static void the_unlabelled_preset_gives_the_same_keys(void **state)
{
    struct schema *a = fixture_schema(&(struct schema_text){ .preset = "criteo" }, NULL);
    struct schema *b =
        fixture_schema(&(struct schema_text){ .preset = "criteo-unlabelled" }, NULL);
    const struct line_parser_plan *p = schema_plan_unlabelled(a), *q = schema_plan(b);

    (void)state;
    assert_false(schema_has_label(b));
    assert_int_equal(p->n_columns, q->n_columns);
    assert_int_equal(p->n_fields, q->n_fields);
    for (uint32_t i = 0; i < 26; i++)
        assert_int_equal(p->fields[i].column, q->fields[i].column);
    for (uint32_t i = 0; i < 13; i++)
        assert_int_equal(p->numeric_columns[i], q->numeric_columns[i]);
    schema_free(a);
    schema_free(b);
}

static void a_preset_lets_columns_be_ignored_and_bucketised(void **state)
{
    struct schema *s = fixture_schema(&(struct schema_text){ .preset = "criteo",
                                                             .delimiter = ";",
                                                             .ignored = "C3, I13,14",
                                                             .bucketise = "I1,2" },
                                      NULL);

    (void)state;
    assert_int_equal(schema_n_numeric(s), 10);
    assert_int_equal(schema_n_fields(s), 26);
    assert_string_equal(schema_field_name(s, 0), "C2");
    assert_string_equal(schema_field_name(s, 24), "I1");
    assert_string_equal(schema_field_name(s, 25), "I2");
    assert_string_equal(schema_plan(s)->delimiter, "\t");
    schema_free(s);
}

static void positions_and_names_may_be_mixed_and_order_does_not_matter(void **state)
{
    struct schema_text text = { .delimiter = ",", .header = true, .label = "click" };
    struct schema *s;

    (void)state;
    text.numeric = "5,b";
    text.categorical = "3-4, a";
    s = fixture_schema(&text, "click,a,b,c,d,e,spare");
    assert_int_equal(schema_n_numeric(s), 2);
    assert_string_equal(schema_numeric_name(s, 0), "b");
    assert_string_equal(schema_numeric_name(s, 1), "e");
    assert_int_equal(schema_n_fields(s), 3);
    assert_string_equal(schema_field_name(s, 0), "a");
    assert_string_equal(schema_field_name(s, 2), "d");
    schema_free(s);
}

static void a_star_is_every_column_that_no_other_list_names(void **state)
{
    struct schema_text text = { .delimiter = ",", .header = true, .label = "click" };
    struct schema *s;

    (void)state;
    text.numeric = "n";
    text.categorical = "*";
    text.bucketise = "b";
    text.ignored = "id";
    s = fixture_schema(&text, "id,click,x,b,n,y");
    assert_int_equal(schema_n_numeric(s), 1);
    assert_int_equal(schema_n_fields(s), 3);
    assert_string_equal(schema_field_name(s, 0), "x");
    assert_string_equal(schema_field_name(s, 1), "y");
    assert_string_equal(schema_field_name(s, 2), "b");
    schema_free(s);
}

static void without_names_the_first_line_says_how_many_columns_there_are(void **state)
{
    struct schema_text text = { .delimiter = "\\t", .label = "0", .categorical = "*" };
    struct schema *s = fixture_schema(&text, "1\tx\ty\tz");

    (void)state;
    assert_int_equal(schema_n_fields(s), 3);
    assert_string_equal(schema_field_name(s, 0), "");
    schema_free(s);
}

static void numerics_may_all_become_categoricals(void **state)
{
    struct schema_text text = { .delimiter = ",", .columns = "y,a,b,c", .label = "y" };
    struct schema *s;

    (void)state;
    text.numeric = "a,c";
    text.categorical = "b";
    text.numeric_as = SCHEMA_BUCKET;
    s = fixture_schema(&text, NULL);
    assert_int_equal(schema_n_numeric(s), 0);
    assert_int_equal(schema_n_fields(s), 3);
    assert_string_equal(schema_field_name(s, 0), "b");
    assert_string_equal(schema_field_name(s, 1), "a");
    assert_true(schema_plan(s)->fields[1].is_bucket);
    schema_free(s);
}

static void delimiters_are_spelled_with_escapes(void **state)
{
    static const char *const spelled[][2] = {
        { "\\t", "\t" }, { "\t", "\t" }, { ",\\s", ", " }, { "\\\\", "\\" }, { "::", "::" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(spelled); i++) {
        struct schema_text text = { .columns = "a,b", .categorical = "*" };
        struct schema *s;

        text.delimiter = spelled[i][0];
        s = fixture_schema(&text, NULL);
        assert_string_equal(schema_plan(s)->delimiter, spelled[i][1]);
        schema_free(s);
    }
}

static void a_column_whose_name_is_a_number_is_meant_by_name(void **state)
{
    struct schema_text text = { .delimiter = ",", .columns = "2,1,0", .categorical = "2" };
    struct schema *s = fixture_schema(&text, NULL);

    (void)state;
    assert_int_equal(schema_field_column(s, 0), 0);
    schema_free(s);
}

/* The seed of the field whose column has this name. */
static uint64_t seed_of(const struct schema *s, const char *name)
{
    char id[SCHEMA_NAME_MAX];

    for (uint32_t f = 0; f < schema_n_fields(s); f++) {
        schema_field_id(s, f, id);
        if (strcmp(id, name) == 0)
            return schema_plan(s)->fields[f].seed;
    }
    fail_msg("no field %s", name);
    return 0;
}

static void a_seed_by_name_is_the_names_hash_and_stays_when_other_columns_go(void **state)
{
    struct schema_text text = { .delimiter = ",",
                                .columns = "y,a,b,c",
                                .label = "y",
                                .categorical = "*",
                                .keys = SCHEMA_KEYS_BY_NAME };
    struct schema *s = fixture_schema(&text, NULL), *fewer;
    struct err err;

    (void)state;
    text.columns = "c,y,b";
    fewer = fixture_schema(&text, NULL);
    assert_true(schema_seed("a") == UINT64_C(16629034431890738719)); /* xxhsum -H3 */
    assert_true(seed_of(s, "a") == schema_seed("a"));
    assert_true(seed_of(s, "b") == seed_of(fewer, "b"));
    assert_true(seed_of(s, "c") == seed_of(fewer, "c"));
    assert_true(schema_plan_unlabelled(fewer)->fields[1].seed == schema_seed("b"));
    assert_int_equal(schema_use_keys(fewer, SCHEMA_KEYS_BY_POSITION, &err), 0);
    assert_int_equal(seed_of(fewer, "c"), 0);
    assert_int_equal(seed_of(fewer, "b"), 1);
    schema_free(s);
    schema_free(fewer);
}

static void a_column_without_a_name_is_called_by_its_position(void **state)
{
    struct schema_text text = {
        .delimiter = ",", .label = "0", .categorical = "2-3", .keys = SCHEMA_KEYS_BY_NAME
    };
    struct schema *s = fixture_schema(&text, "1,2,3,4");
    char label[SCHEMA_NAME_MAX];

    (void)state;
    assert_true(schema_plan(s)->fields[0].seed == schema_seed("2"));
    assert_true(schema_plan_unlabelled(s)->fields[1].seed == schema_seed("3"));
    schema_label_id(s, 0, label);
    assert_string_equal(label, "0");
    schema_free(s);
}

static void columns_that_share_a_table_have_the_seed_of_the_groups_first(void **state)
{
    struct schema_text text = { .delimiter = ",",
                                .columns = "y,a,b,c,d,e",
                                .label = "y",
                                .categorical = "*",
                                .shared = "c,a, e;b,4" };

    (void)state;
    for (enum schema_keys k = SCHEMA_KEYS_BY_POSITION; k <= SCHEMA_KEYS_BY_NAME; k++) {
        struct schema *s;

        text.keys = k;
        s = fixture_schema(&text, NULL);
        assert_true(seed_of(s, "a") == (k ? schema_seed("c") : 2));
        assert_true(seed_of(s, "e") == seed_of(s, "c") && seed_of(s, "c") == seed_of(s, "a"));
        assert_true(seed_of(s, "d") == (k ? schema_seed("b") : 1));
        assert_int_equal(schema_field_table(s, 4), 2);
        schema_free(s);
    }
}

static void tables_are_shared_two_by_two(void **state)
{
    struct schema_text text = { .delimiter = ",",
                                .columns = "a,b,c,d,e",
                                .categorical = "*",
                                .shared = "b,d",
                                .keys = SCHEMA_KEYS_BY_NAME };
    struct schema *s = fixture_schema(&text, NULL);
    struct err err;

    (void)state;
    assert_true(schema_shares(s));
    assert_int_equal(schema_share(s, 3, 4, &err), 0);
    assert_true(seed_of(s, "e") == schema_seed("b") && seed_of(s, "c") == schema_seed("c"));
    assert_int_equal(schema_share(s, 4, 0, &err), 0);
    for (uint32_t f = 0; f < 5; f++)
        assert_int_equal(schema_field_table(s, f), f == 2 ? 2 : 0);
    assert_true(seed_of(s, "d") == schema_seed("a"));
    assert_int_equal(schema_plan_unlabelled(s)->fields[3].seed, schema_seed("a"));
    schema_free(s);
    text.shared = NULL;
    text.bucketise = "e";
    s = fixture_schema(&text, NULL);
    assert_false(schema_shares(s));
    assert_int_equal(schema_share(s, 0, 4, &err), PS_ESETTING);
    fixture_assert_says(&err, "share-table: of columns 0 and 4 one is bucketised");
    assert_false(schema_shares(s));
    schema_free(s);
}

static void two_columns_of_one_name_need_positions_or_one_table(void **state)
{
    struct schema_text text = { .delimiter = ",", .header = true, .categorical = "*" };
    struct schema *s = fixture_schema(&text, "a,b,a");
    struct err err;

    (void)state;
    assert_int_equal(schema_use_keys(s, SCHEMA_KEYS_BY_NAME, &err), PS_ESETTING);
    fixture_assert_says(&err, "columns 0 and 2 are both called 'a', and keys come from names");
    assert_int_equal(schema_plan(s)->fields[2].seed, 2);
    assert_int_equal(schema_keys(s), SCHEMA_KEYS_BY_POSITION);
    schema_free(s);
    text.shared = "0,2";
    s = fixture_schema(&text, "a,b,a");
    assert_int_equal(schema_use_keys(s, SCHEMA_KEYS_BY_NAME, &err), 0);
    schema_free(s);
}

/* Each is a schema with one thing wrong, and what is said about it. */
static const struct bad_schema {
    struct schema_text text;
    const char *first_line, *says;
} bad_schemas[] = {
    { { .preset = "kaggle" }, NULL, "--format: \"kaggle\" is unknown; there are criteo" },
    { { .preset = "criteo", .label = "0" }, NULL, "preset: criteo already says" },
    { { .preset = "criteo", .numeric = "1-13" }, NULL, "preset: criteo already says" },
    { { .preset = "criteo", .ignored = "C27" }, NULL, "ignored: no column is called 'C27'" },
    { { .preset = "criteo", .ignored = "label" }, NULL, "column 0 label is the label already" },
    { { .preset = "criteo", .ignored = "40" }, NULL, "no column 40; there are 40, 0 to 39" },
    { { .columns = "y,a", .categorical = "a" }, NULL, "delimiter: empty" },
    { { .delimiter = "\\n", .columns = "y,a" }, NULL, "delimiter: '\\n'" },
    { { .delimiter = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }, NULL, "delimiter: longer than 15" },
    { { .delimiter = ",", .categorical = "0" }, NULL, "the first line of the data is needed" },
    { { .delimiter = ",", .header = true, .columns = "a" }, "a", "columns: names are given" },
    { { .delimiter = ",", .columns = "y,a,b,c", .categorical = "z" },
      NULL,
      "categorical: no column is called 'z'; there are y, a, b, c" },
    { { .delimiter = ",", .header = true, .label = "click", .categorical = "*" },
      "y,a",
      "label: no column is called 'click'; there are y, a" },
    { { .delimiter = ",", .label = "click", .categorical = "*" },
      "1,x",
      "label: 'click' is a name, but the columns have none" },
    { { .delimiter = ",",
        .columns = "a,b,c,d,e,f,g,h,i,j",
        .label = "0-8",
        .categorical = "*" },
      NULL,
      "label: '0-8': one column expected, or up to 8" },
    { { .delimiter = ",", .columns = "y,a,b", .label = "*" }, NULL, "one column expected" },
    { { .delimiter = ",",
        .columns = "y,a,b",
        .label = "y",
        .numeric = "a",
        .categorical = "a" },
      NULL,
      "categorical: column 1 a is numeric already" },
    { { .delimiter = ",", .columns = "y,a,b", .label = "y", .numeric = "0-1" },
      NULL,
      "numeric: column 0 y is the label already" },
    { { .delimiter = ",", .columns = "y,a", .numeric = "a,1" }, NULL, "is numeric already" },
    { { .delimiter = ",", .columns = "y,a", .numeric = "*", .categorical = "*" },
      NULL,
      "categorical: the other columns ('*') are numeric already" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "b", .bucketise = "b" },
      NULL,
      "bucketise: column 2 b is categorical already" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a", .ignored = "a" },
      NULL,
      "ignored: column 1 a is categorical already" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "2" }, NULL, "no column 2" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "0-5" }, NULL, "no column 5" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "1-0" }, NULL, "runs backwards" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "1-" }, NULL, "'1-'" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "-1" }, NULL, "'-1'" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "99999999999999999999" },
      NULL,
      "'99999999999999999999'" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "a,,y" }, NULL, "an empty item" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "a," }, NULL, "an empty item" },
    { { .delimiter = ",", .columns = "y,a", .label = "y" },
      NULL,
      "no column is either, so there is nothing to learn from: name columns with these two, or "
      "give --format" },
    { { .delimiter = ",", .columns = "a,b,a", .categorical = "a" },
      NULL,
      "2 columns are called 'a'" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "a", .quote = "''" },
      NULL,
      "quote: ''''" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "a", .quote = "," },
      NULL,
      "quote: ','" },
    { { .delimiter = ", ", .columns = "y,a", .categorical = "a", .quote = "\"" },
      NULL,
      "quote: '\"'" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "a", .inner_separator = "," },
      NULL,
      "inner-separator: ',' holds the delimiter" },
    { { .delimiter = ",", .columns = "y,a", .categorical = "a", .label_positive = "a,,b" },
      NULL,
      "label-positive: an empty token" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "a,z" },
      NULL,
      "share-table: no column is called 'z'" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "a,7" },
      NULL,
      "share-table: '7': one column expected, 0 to 2" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "0-1" },
      NULL,
      "share-table: '0-1': one column expected" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "y,a" },
      NULL,
      "share-table: 'y' is no categorical column: it has no table" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "a" },
      NULL,
      "share-table: 'a': two columns or more expected" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "a,b;" },
      NULL,
      "share-table: an empty item in ''" },
    { { .delimiter = ",", .columns = "y,a,b", .categorical = "a,b", .shared = "a,,b" },
      NULL,
      "share-table: an empty item in 'a,,b'" },
    { { .delimiter = ",", .columns = "y,a,b,c", .categorical = "*", .shared = "a,b;c,b" },
      NULL,
      "share-table: 'b' stands there twice" },
    { { .delimiter = ",",
        .columns = "a,b",
        .categorical = "a",
        .bucketise = "b",
        .shared = "a,b" },
      NULL,
      "share-table: of columns 0 and 1 one is bucketised" },
    { { .delimiter = ",", .header = true, .categorical = "*", .keys = SCHEMA_KEYS_BY_NAME },
      "a,b,a",
      "columns 0 and 2 are both called 'a'" },
    { { .delimiter = ",", .header = true, .categorical = "*", .quote = "\"" },
      "\"a,b",
      "a quote is not closed" },
    { { .delimiter = ",", .header = true, .categorical = "*" },
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,b",
      "is longer than 63 bytes" },
};

static void what_cannot_be_is_refused_with_the_settings_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_schemas); i++) {
        struct schema *s = NULL;
        struct err err = { 0 };
        int status = schema_new(&bad_schemas[i].text, bad_schemas[i].first_line, &s, &err);

        if (status != PS_ESETTING && status != PS_EDATA)
            fail_msg("status %d where \"%s\" was expected", status, bad_schemas[i].says);
        assert_int_equal(err.status, status);
        assert_null(s);
        fixture_assert_says(&err, bad_schemas[i].says);
    }
}

static void a_line_of_too_many_columns_is_refused(void **state)
{
    struct schema_text text = { .delimiter = ",", .categorical = "*" };
    char line[1100];
    struct schema *s = NULL;
    struct err err;

    (void)state;
    memset(line, ',', sizeof line);
    line[1023] = '\0';
    s = fixture_schema(&text, line);
    assert_int_equal(schema_n_fields(s), 1024);
    schema_free(s);
    line[1023] = ',';
    line[1024] = '\0';
    assert_int_equal(schema_new(&text, line, &s, &err), PS_ESETTING);
    fixture_assert_says(&err, "1 to 1024");
}

static void the_names_that_are_there_are_listed_as_far_as_they_fit(void **state)
{
    struct schema_text text = { .delimiter = ",", .header = true, .label = "y" };
    char line[8000] = "";
    struct schema *s = NULL;
    struct err err;

    (void)state;
    for (int i = 0; i < 500; i++)
        snprintf(line + strlen(line), 16, "%scolumn%d", i ? "," : "", i);
    assert_int_equal(schema_new(&text, line, &s, &err), PS_ESETTING);
    fixture_assert_says(&err, "there are column0, column1, ");
    fixture_assert_says(&err, ", ...");
}

static void a_schema_can_be_opened_with_the_file_itself(void **state)
{
    struct schema_text text = { .delimiter = ",", .header = true, .categorical = "*" };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct schema *s = NULL;
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    fixture_write_text(&folder, "a.csv", "\xef\xbb\xbfone,two\r\n1,2\r\n", path);
    assert_int_equal(schema_open(&text, NULL, path, &s, &err), 0);
    assert_string_equal(schema_field_name(s, 0), "one");
    assert_string_equal(schema_field_name(s, 1), "two");
    schema_free(s);
    fixture_write_text(&folder, "empty.csv", "", path);
    assert_int_equal(schema_open(&text, NULL, path, &s, &err), PS_EDATA);
    fixture_assert_says(&err, "empty.csv: holds no line");
    fixture_path(&folder, "none.csv", path);
    assert_int_equal(schema_open(&text, NULL, path, &s, &err), -ENOENT);
    fixture_assert_says(&err, "none.csv: cannot open");
    text.columns = "a,b";
    text.header = false;
    assert_int_equal(schema_open(&text, NULL, path, &s, &err), 0);
    schema_free(s);
    fixture_folder_free(&folder);
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported(void **state)
{
    struct schema_text text = {
        .delimiter = ",", .header = true, .label = "y", .categorical = "*"
    };
    int status = -1;

    (void)state;
    for (long k = 0; status != 0; k++) {
        struct schema *s = NULL;
        struct err err;

        memory_fail_after(k);
        status = schema_new(&text, "y,a,b", &s, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true((status == 0) == (s != NULL));
        schema_free(s);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_criteo_preset_has_40_columns),
        cmocka_unit_test(the_unlabelled_preset_gives_the_same_keys),
        cmocka_unit_test(a_preset_lets_columns_be_ignored_and_bucketised),
        cmocka_unit_test(positions_and_names_may_be_mixed_and_order_does_not_matter),
        cmocka_unit_test(a_star_is_every_column_that_no_other_list_names),
        cmocka_unit_test(without_names_the_first_line_says_how_many_columns_there_are),
        cmocka_unit_test(numerics_may_all_become_categoricals),
        cmocka_unit_test(delimiters_are_spelled_with_escapes),
        cmocka_unit_test(a_column_whose_name_is_a_number_is_meant_by_name),
        cmocka_unit_test(a_seed_by_name_is_the_names_hash_and_stays_when_other_columns_go),
        cmocka_unit_test(a_column_without_a_name_is_called_by_its_position),
        cmocka_unit_test(columns_that_share_a_table_have_the_seed_of_the_groups_first),
        cmocka_unit_test(tables_are_shared_two_by_two),
        cmocka_unit_test(two_columns_of_one_name_need_positions_or_one_table),
        cmocka_unit_test(what_cannot_be_is_refused_with_the_settings_name),
        cmocka_unit_test(a_line_of_too_many_columns_is_refused),
        cmocka_unit_test(the_names_that_are_there_are_listed_as_far_as_they_fit),
        cmocka_unit_test(a_schema_can_be_opened_with_the_file_itself),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
