/* Bodies of requests for scores: the samples that the same rows have as lines of a log, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <xxhash.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"
#include "worker/serve/score_request.h"

#define N_ROWS 200u
#define N_COLUMNS 5u /* beside the label */

static const struct schema_text text = { .delimiter = "\\t",
                                         .columns = "a,y,b,tag,age,place",
                                         .label = "y",
                                         .numeric = "a,b",
                                         .bucketise = "age",
                                         .categorical = "tag,place",
                                         .missing = "?",
                                         .inner_separator = "|",
                                         .keys = SCHEMA_KEYS_BY_NAME };

/* As score_columns has them; the line's place of each. */
static const char *const names[N_COLUMNS] = { "a", "b", "tag", "place", "age" };
static const uint32_t line_places[N_COLUMNS] = { 0, 1, 2, 4, 3 };

struct bench {
    struct schema *schema;
    struct score_columns *columns;
    struct batch batch;
    struct score_request request;
    char *body; /* owned: in a block of just its size */
    struct err err;
};

static void bench_new(struct bench *b, const struct schema_text *schema, uint32_t n_max)
{
    *b = (struct bench){ 0 };
    assert_int_equal(schema_new(schema, NULL, &b->schema, &b->err), 0);
    assert_int_equal(score_columns_new(b->schema, &b->columns, &b->err), 0);
    assert_int_equal(
        batch_init(&b->batch, n_max, schema_n_numeric(b->schema), schema_n_fields(b->schema)),
        0);
}

static void bench_free(struct bench *b)
{
    score_request_close(&b->request);
    batch_deinit(&b->batch);
    score_columns_free(b->columns);
    schema_free(b->schema);
    free(b->body);
}

static int open_bytes(struct bench *b, const char *bytes, size_t n_bytes)
{
    score_request_close(&b->request);
    free(b->body);
    b->body = malloc(n_bytes ? n_bytes : 1);
    memcpy(b->body, bytes, n_bytes);
    b->err = (struct err){ 0 };
    return score_request_open(&b->request, b->columns, b->body, n_bytes, &b->err);
}

/* All of a body, into the batch alone. */
static int read_bytes(struct bench *b, const char *bytes, size_t n_bytes)
{
    int status = open_bytes(b, bytes, n_bytes);

    batch_clear(&b->batch);
    return status ? status : score_request_read(&b->request, &b->batch, &b->err);
}

static int read_body(struct bench *b, const char *body)
{
    return read_bytes(b, body, strlen(body));
}

static void read_well(struct bench *b, const char *body)
{
    if (read_body(b, body))
        fail_msg("%s: %s", body, b->err.text);
    assert_int_equal(b->request.n_read, b->request.n_rows);
}

static void assert_same(const struct batch *a, const struct batch *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_keys, b->n_keys);
    assert_memory_equal(a->numeric, b->numeric, a->n * a->n_numeric * sizeof *a->numeric);
    assert_memory_equal(a->label, b->label, a->n * sizeof *a->label);
    assert_memory_equal(a->starts, b->starts, (a->n * a->n_fields + 1) * sizeof *a->starts);
    assert_memory_equal(a->keys, b->keys, a->n_keys * sizeof *a->keys);
}

/* ---- the samples of lines ---- */

/* A table of tokens, and a line and JSON of each row. */
struct rows {
    uint64_t seed, counter;
    char tokens[N_ROWS][N_COLUMNS][48];
};

static uint32_t draw(struct rows *r, uint32_t n)
{
    return (uint32_t)((hash_mix2(r->seed, r->counter++) >> 32) * n >> 32);
}

static void draw_rows(struct rows *r)
{
    static const char *const numbers[] = { "",    "?",   "0",      "12",   "-3.5",
                                           "1e6", "0.1", "-1e-30", "7000", "123456789012" };
    static const char *const tags[] = {
        "", "?", "x", "a|b", "a||b|?", "|", "12", "red shoe", "\xc3\xa9t\xc3\xa9", "\"q\\"
    };

    r->seed = seed_by_the_clock();
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (uint32_t c = 0; c < N_COLUMNS; c++)
            snprintf(r->tokens[i][c], sizeof r->tokens[i][c], "%s",
                     (c == 2 || c == 3 ? tags : numbers)[draw(r, 10)]);
}

static void add_lines(const struct rows *r, const struct schema *schema, struct batch *b)
{
    for (uint32_t i = 0; i < N_ROWS; i++) {
        const char *cells[N_COLUMNS];
        char line[256];
        struct err err;

        for (uint32_t c = 0; c < N_COLUMNS; c++)
            cells[line_places[c]] = r->tokens[i][c];
        snprintf(line, sizeof line, "%s\t%s\t%s\t%s\t%s", cells[0], cells[1], cells[2],
                 cells[3], cells[4]);
        assert_int_equal(
            line_parser_parse(schema_plan_unlabelled(schema), line, strlen(line), b, &err), 0);
    }
}

static bool is_json_number(const char *token)
{
    return *token && *token != '?';
}

/* As a string, or, of a numeric column and at random, as a number. */
static void put_value(FILE *out, struct rows *r, uint32_t row, uint32_t column)
{
    const char *token = r->tokens[row][column];
    const bool is_number = column != 2 && column != 3 && is_json_number(token);

    if (!*token && draw(r, 2)) {
        fputs("null", out);
        return;
    }
    if (is_number && draw(r, 2)) {
        fputs(token, out);
        return;
    }
    fputc('"', out);
    for (const char *at = token; *at; at++)
        if (*at == '"' || *at == '\\')
            fprintf(out, draw(r, 2) ? "\\%c" : "\\u%04x", *at);
        else
            fputc(*at, out);
    fputc('"', out);
}

/* Objects, their members in any order and some of the empty ones left out. */
static void put_object(FILE *out, struct rows *r, uint32_t row)
{
    const uint32_t first = draw(r, 3) ? 0 : draw(r, N_COLUMNS);
    bool has_any = false;

    fputc('{', out);
    for (uint32_t i = 0; i < N_COLUMNS; i++) {
        const uint32_t c = (first + i) % N_COLUMNS;

        if (!r->tokens[row][c][0] && draw(r, 2))
            continue;
        fprintf(out, "%s\"%s\" :\n", has_any ? " , " : "", names[c]);
        put_value(out, r, row, c);
        has_any = true;
    }
    fputc('}', out);
}

static void put_list(FILE *out, struct rows *r, uint32_t row, const uint32_t *order)
{
    for (uint32_t i = 0; i < N_COLUMNS; i++) {
        fputc(i ? ',' : '[', out);
        put_value(out, r, row, order ? order[i] : i);
    }
    fputc(']', out);
}

static char *make_body(struct rows *r, const uint32_t *order, bool has_objects)
{
    char *body;
    size_t n_bytes;
    FILE *out = open_memstream(&body, &n_bytes);

    fputs("{\"rows\":[", out);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        fputs(i ? ",\n" : "", out);
        if (has_objects)
            put_object(out, r, i);
        else
            put_list(out, r, i, order);
    }
    fputs("]", out);
    if (order) {
        fputs(", \"columns\":", out);
        for (uint32_t i = 0; i < N_COLUMNS; i++)
            fprintf(out, "%s\"%s\"", i ? "," : "[", names[order[i]]);
        fputs("]", out);
    }
    fputs("}", out);
    fclose(out);
    return body;
}

static void check_body(struct bench *b, char *body, const struct batch *want)
{
    read_well(b, body);
    assert_same(&b->batch, want);
    free(body);
}

static void rows_are_the_samples_of_their_lines(void **state)
{
    static const uint32_t order[N_COLUMNS] = { 3, 0, 4, 2, 1 };
    struct rows *r = memory_alloc(sizeof *r);
    struct bench b;
    struct batch want;

    (void)state;
    bench_new(&b, &text, N_ROWS);
    draw_rows(r);
    assert_int_equal(batch_init(&want, N_ROWS, 2, 3), 0);
    add_lines(r, b.schema, &want);
    check_body(&b, make_body(r, NULL, true), &want);
    check_body(&b, make_body(r, NULL, false), &want);
    check_body(&b, make_body(r, order, false), &want);
    batch_deinit(&want);
    bench_free(&b);
    free(r);
}

/* The batch of a pass is shared: rows come as there is space. */
static void rows_come_in_pieces(void **state)
{
    struct rows *r = memory_alloc(sizeof *r);
    uint32_t n_read = 0, n_keys = 0;
    struct batch want;
    struct bench b;
    char *body;

    (void)state;
    bench_new(&b, &text, 7);
    draw_rows(r);
    assert_int_equal(batch_init(&want, N_ROWS, 2, 3), 0);
    add_lines(r, b.schema, &want);
    body = make_body(r, NULL, true);
    assert_int_equal(open_bytes(&b, body, strlen(body)), 0);
    assert_int_equal(b.request.n_rows, N_ROWS);
    while (n_read < N_ROWS) {
        batch_clear(&b.batch);
        assert_int_equal(score_request_read(&b.request, &b.batch, &b.err), 0);
        assert_int_equal(b.batch.n, N_ROWS - n_read < 7 ? N_ROWS - n_read : 7);
        assert_memory_equal(b.batch.keys, want.keys + n_keys,
                            b.batch.n_keys * sizeof *want.keys);
        n_keys += b.batch.n_keys;
        n_read += b.batch.n;
        assert_int_equal(b.request.n_read, n_read);
    }
    assert_int_equal(n_keys, want.n_keys);
    free(body);
    batch_deinit(&want);
    bench_free(&b);
    free(r);
}

static uint64_t key_of(const char *column, const char *token)
{
    return XXH3_64bits_withSeed(token, strlen(token), schema_seed(column));
}

/* A double would have lost the last digits. */
static void a_number_is_the_token_that_it_is_written_as(void **state)
{
    static const char *const numbers[] = {
        "12345678901234567890", "0", "-7", "1.50", "1e3", "1E+3"
    };
    struct bench b;
    char body[128];

    (void)state;
    bench_new(&b, &text, 4);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        snprintf(body, sizeof body, "{\"rows\":[{\"tag\":%s}]}", numbers[i]);
        read_well(&b, body);
        assert_true(b.batch.keys[0] == key_of("tag", numbers[i]));
    }
    bench_free(&b);
}

static void escapes_are_their_characters(void **state)
{
    static const char *const cases[][2] = {
        { "\\u00e9", "\xc3\xa9" },     { "\\ud83d\\ude00", "\xf0\x9f\x98\x80" },
        { "\\u20AC", "\xe2\x82\xac" }, { "a\\/b\\n\\t\\r\\b\\f", "a/b\n\t\r\b\f" },
        { "\\\\\\\"", "\\\"" },        { "\xff", "\xff" },
    };
    struct bench b;
    char body[128];

    (void)state;
    bench_new(&b, &text, 4);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        snprintf(body, sizeof body, "{\"rows\":[{\"\\u0074ag\":\"%s\"}]}", cases[i][0]);
        read_well(&b, body);
        assert_true(b.batch.keys[0] == key_of("tag", cases[i][1]));
    }
    bench_free(&b);
}

/* As the parts between separators, and as a LIST of Parquet. */
static void a_list_is_a_bag(void **state)
{
    static const char *const cases[][2] = {
        { "[\"a\",\"b\"]", "\"a|b\"" },
        { "[]", "null" },
        { "[null, \"?\"]", "\"?\"" },
        { "[ 12 , null , \"a|b\" ]", "\"12|a|b\"" },
    };
    struct bench b, plain;
    char body[160];

    (void)state;
    bench_new(&b, &text, 4);
    bench_new(&plain, &text, 4);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        snprintf(body, sizeof body, "{\"rows\":[{\"tag\":%s,\"place\":\"x\"}]}", cases[i][0]);
        read_well(&b, body);
        snprintf(body, sizeof body, "{\"rows\":[{\"tag\":%s,\"place\":\"x\"}]}", cases[i][1]);
        read_well(&plain, body);
        assert_same(&b.batch, &plain.batch);
    }
    bench_free(&b);
    bench_free(&plain);
}

static void columns_without_a_name_have_their_position(void **state)
{
    static const struct schema_text unnamed = {
        .delimiter = ",", .label = "0", .numeric = "2", .categorical = "1,3"
    };
    struct schema *schema;
    struct bench b = { 0 };

    (void)state;
    assert_int_equal(schema_new(&unnamed, "1,a,2,b", &schema, &b.err), 0);
    b.schema = schema;
    assert_int_equal(score_columns_new(schema, &b.columns, &b.err), 0);
    assert_int_equal(batch_init(&b.batch, 4, 1, 2), 0);
    assert_int_equal(score_columns_n(b.columns), 3);
    assert_string_equal(score_columns_name(b.columns, 0), "2");
    assert_string_equal(score_columns_name(b.columns, 2), "3");
    read_well(&b, "{\"rows\":[{\"2\":5,\"1\":\"x\"},[5,\"x\",null]]}");
    assert_true(b.batch.keys[0] == b.batch.keys[2] && b.batch.keys[1] == b.batch.keys[3]);
    bench_free(&b);
}

/* ---- refusals ---- */

static const char *const refusals[][2] = {
    { "", "byte 0: an object was expected" },
    { "[]", "an object was expected" },
    { "{", "a name in quotes was expected" },
    { "{}", "there are no \"rows\"" },
    { "{\"rows\":[]} x", "more stands behind its end" },
    { "{\"rows\":[]", "a comma or } was expected" },
    { "{\"rows\":[", "a value was expected" },
    { "{\"rows\":{}}", "\"rows\" is no list" },
    { "{\"rows\":[],\"rows\":[]}", "\"rows\" stands there twice" },
    { "{\"row\":[]}", "\"row\" is unknown" },
    { "{\"columns\":[\"a\"]}", "there are no \"rows\"" },
    { "{\"columns\":[\"a\",\"a\"],\"rows\":[]}", "\"a\" stands there twice" },
    { "{\"columns\":[1],\"rows\":[]}", "names in quotes were expected" },
    { "{\"columns\":[\"y\"],\"rows\":[]}", "there is no column \"y\"" },
    { "{\"rows\":[{\"a\":NaN}]}", "NaN and Infinity are no numbers" },
    { "{\"rows\":[{\"a\":-Infinity}]}", "NaN and Infinity are no numbers" },
    { "{\"rows\":[{\"a\":01}]}", "a comma or } was expected" },
    { "{\"rows\":[{\"a\":1.}]}", "a digit was expected" },
    { "{\"rows\":[{\"a\":1e}]}", "a digit was expected" },
    { "{\"rows\":[{\"a\":+1}]}", "a value was expected" },
    { "{\"rows\":[{\"a\":tru}]}", "a value was expected" },
    { "{\"rows\":[{\"a\" 1}]}", "a colon was expected" },
    { "{\"rows\":[{\"a\":1,}]}", "a name in quotes was expected" },
    { "{\"rows\":[{\"tag\":\"x}]}", "a string has no end" },
    { "{\"rows\":[{\"tag\":\"\n\"}]}", "a control character in a string" },
    { "{\"rows\":[{\"tag\":\"\\x\"}]}", "an escape that there is not" },
    { "{\"rows\":[{\"tag\":\"\\ud83d\"}]}", "an escape that there is not" },
    { "{\"rows\":[{\"tag\":\"\\ude00\"}]}", "an escape that there is not" },
    { "{\"rows\":[{\"tag\":\"\\u12g4\"}]}", "an escape that there is not" },
    { "{\"rows\":[{\"tag\":[[[1]]]}]}", "nested more deeply than rows are" },
    { "{\"rows\":[{\"a\":1},{\"b\":2,\"c\":3}]}", "row 1: there is no column \"c\"" },
    { "{\"rows\":[{\"a\":1,\"a\":1}]}", "row 0: column \"a\" stands there twice" },
    { "{\"rows\":[{\"a\":true}]}", "row 0: column \"a\": true is neither" },
    { "{\"rows\":[{\"tag\":false}]}", "column \"tag\": false is neither" },
    { "{\"rows\":[{\"tag\":{}}]}", "an object or a list is neither" },
    { "{\"rows\":[{\"tag\":[{}]}]}", "nested more deeply than rows are" },
    { "{\"rows\":[{\"a\":[1]}]}", "column \"a\": a list is no number" },
    { "{\"rows\":[{\"a\":\"x\"}]}", "row 0: column 0 (a): 'x' is not a number" },
    { "{\"rows\":[{\"a\":\"nan\"}]}", "'nan' is not a number" },
    { "{\"rows\":[{\"a\":1e999}]}", "'1e999' is not a number" },
    { "{\"rows\":[{\"age\":\"old\"}]}", "(age): 'old' is not a number" },
    { "{\"rows\":[{\"tag\":\"a\\u0000b\"}]}", "a NUL byte in a text" },
    { "{\"rows\":[1]}", "row 0: neither an object nor a list" },
    { "{\"rows\":[[1,2,3,4]]}", "row 0: 4 values, 5 expected" },
    { "{\"rows\":[[]]}", "row 0: 0 values, 5 expected" },
    { "{\"rows\":[[1,2,3,4,5,6]]}", "row 0: more than the 5 values expected" },
    { "{\"columns\":[\"a\"],\"rows\":[[1],[]]}", "row 1: 0 values, 1 expected" },
};

static void bad_bodies_are_refused_with_a_sentence(void **state)
{
    struct bench b;

    (void)state;
    bench_new(&b, &text, 4);
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        assert_int_equal(read_body(&b, refusals[i][0]), PS_EDATA);
        if (!strstr(b.err.text, refusals[i][1]))
            fail_msg("%s: no \"%s\" in: %s", refusals[i][0], refusals[i][1], b.err.text);
        assert_int_equal(b.batch.n, b.request.n_read);
    }
    read_well(&b, "{\"rows\":[]}");
    read_well(&b, " {\"columns\":[],\"rows\":[[],{}]} ");
    assert_int_equal(b.batch.n, 2);
    bench_free(&b);
}

static void two_columns_of_one_name_are_given_in_lists(void **state)
{
    struct schema_text twice = text;
    struct bench b;

    (void)state;
    twice.columns = "a,y,b,tag,age,tag";
    twice.categorical = "3,5";
    twice.shared = "3,5";
    bench_new(&b, &twice, 4);
    assert_int_equal(read_body(&b, "{\"rows\":[{\"tag\":1}]}"), PS_EDATA);
    assert_non_null(strstr(b.err.text, "two columns are called \"tag\""));
    read_well(&b, "{\"rows\":[[1,2,3,4,5]]}");
    bench_free(&b);
}

/* None is read past, and what is accepted makes whole samples. */
static void damaged_bodies_end_nothing(void **state)
{
    static const char body[] = "{\"columns\":[\"a\",\"tag\"],\"rows\":[[1.5,\"x\\u00e9\"],{"
                               "\"a\":-2e3,\"tag\":[\"p\",null,7],"
                               "\"age\":44},[null,\"\"]]}";
    static const char others[] = "{}[]\",:\\u0n-1e. \x80";
    struct bench b;

    (void)state;
    bench_new(&b, &text, 4);
    read_well(&b, body);
    for (size_t n = 0; n < sizeof body - 1; n++) {
        assert_int_equal(read_bytes(&b, body, n), PS_EDATA);
        for (size_t i = 0; i < sizeof others; i++) {
            char damaged[sizeof body];

            memcpy(damaged, body, sizeof body);
            damaged[n] = others[i];
            (void)!read_bytes(&b, damaged, sizeof body - 1);
            assert_int_equal(b.batch.n, b.request.n_read);
        }
    }
    bench_free(&b);
}

#ifdef PS_FAULTS
static void without_memory_a_request_fails_alone(void **state)
{
    static const char body[] =
        "{\"rows\":[{\"tag\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}]}";
    struct score_columns *columns;
    bool is_done = false;
    struct bench b;

    (void)state;
    for (long k = 0; !is_done; k++) {
        int status;

        bench_new(&b, &text, 1);
        memory_fail_after(k);
        status = read_bytes(&b, body, sizeof body - 1);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_int_equal(b.batch.n, status == 0);
        is_done = status == 0;
        assert_true(is_done || b.batch.n_keys == 0);
        bench_free(&b);
    }
    bench_new(&b, &text, 1);
    for (long k = 0; k < 3; k++) {
        memory_fail_after(k);
        assert_int_equal(score_columns_new(b.schema, &columns, &b.err), -ENOMEM);
        memory_fail_after(-1);
    }
    bench_free(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_samples_of_their_lines),
        cmocka_unit_test(rows_come_in_pieces),
        cmocka_unit_test(a_number_is_the_token_that_it_is_written_as),
        cmocka_unit_test(escapes_are_their_characters),
        cmocka_unit_test(a_list_is_a_bag),
        cmocka_unit_test(columns_without_a_name_have_their_position),
        cmocka_unit_test(bad_bodies_are_refused_with_a_sentence),
        cmocka_unit_test(two_columns_of_one_name_are_given_in_lists),
        cmocka_unit_test(damaged_bodies_end_nothing),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_a_request_fails_alone),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
