/*
 * Lines of a click log: u8 schema | lines.
 *
 * The quick ways through a line end where the plain one ends; a line that is refused leaves no trace; a
 * sample becomes a record and a sample again.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/harness.h"
#include "worker/data/line_parser_simd.h"
#include "worker/data/parsed_row.h"
#include "worker/data/schema.h"

#define LINES_MAX 6u

static const struct schema_text schemas[] = {
    { .preset = "criteo" },
    { .preset = "criteo-unlabelled" },
    { .delimiter = ",",
      .columns = "y,a,b,c,d",
      .label = "y",
      .numeric = "a,b",
      .categorical = "c,d",
      .quote = "\"",
      .numeric_as = SCHEMA_STANDARDISE },
    { .delimiter = ",\\s",
      .columns = "y,a,b,c,d",
      .label = "y",
      .label_positive = ">50K,yes",
      .numeric = "a",
      .bucketise = "b",
      .categorical = "c,d",
      .missing = "?" },
    { .delimiter = "\\t",
      .columns = "a,y,b,c",
      .label = "y",
      .numeric = "a",
      .categorical = "b,c",
      .inner_separator = "|",
      .missing_as = SCHEMA_MISSING_SKIP,
      .numeric_as = SCHEMA_RAW },
};

/* A plan, the ways through it, and a batch for each. */
struct ways {
    struct line_parser_plan plain, quick[SIMD_END];
    struct batch want, got;
};

static void must(int status)
{
    assert(status == 0);
}

static void ways_init(struct ways *w, const struct schema *schema)
{
    w->plain = *schema_plan(schema);
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
        w->quick[s] = w->plain;
        w->quick[s].simd = line_parser_simd_fits(&w->plain) && simd_runs(s)
                               ? line_parser_simd_new(&w->plain, s)
                               : NULL;
    }
    w->plain.simd = NULL;
    must(batch_init(&w->want, 4, w->plain.n_numeric, w->plain.n_fields));
    must(batch_init(&w->got, 4, w->plain.n_numeric, w->plain.n_fields));
}

static void ways_deinit(struct ways *w)
{
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++)
        free((struct line_parser_simd *)(uintptr_t)w->quick[s].simd);
    batch_deinit(&w->want);
    batch_deinit(&w->got);
}

static void check_same(const struct batch *a, const struct batch *b)
{
    size_t n_numeric = (size_t)a->n * a->n_numeric, n_bags = (size_t)a->n * a->n_fields;

    assert(a->n == b->n && a->n_keys == b->n_keys);
    assert(memcmp(a->label, b->label, a->n * sizeof *a->label) == 0);
    assert(!n_numeric || memcmp(a->numeric, b->numeric, n_numeric * sizeof *a->numeric) == 0);
    assert(memcmp(a->starts, b->starts, (n_bags + 1) * sizeof *a->starts) == 0);
    assert(!a->n_keys || memcmp(a->keys, b->keys, a->n_keys * sizeof *a->keys) == 0);
}

static void check_sample(const struct batch *b)
{
    for (uint32_t i = 0; i < b->n * b->n_numeric; i++)
        assert(isfinite(b->numeric[i]));
    for (uint32_t i = 0; i < b->n; i++)
        assert(b->label[i] >= 0 && b->label[i] <= 1);
    assert(b->starts[b->n * b->n_fields] == b->n_keys);
}

/* The first sample as a record, and back. */
static void check_record(struct ways *w)
{
    const struct parsed_row *r;
    struct bytes record = { 0 };

    must(parsed_row_put_row(&record, &w->want, 77));
    assert(parsed_row_is_sound(bytes_front(&record), bytes_len(&record), w->plain.n_numeric,
                               w->plain.n_fields));
    r = (const struct parsed_row *)(const void *)bytes_front(&record);
    assert(r->n_bytes == bytes_len(&record));
    batch_clear(&w->got);
    must(parsed_row_add(r, &w->got));
    check_same(&w->want, &w->got);
    bytes_deinit(&record);
}

/* Its text is copied each time: the plain way scribbles on it. */
static int parse(const struct line_parser_plan *plan, const uint8_t *line, size_t len,
                 struct batch *b, struct err *why)
{
    char *copy = malloc(len ? len : 1);
    uint32_t n = b->n, n_keys = b->n_keys;
    int status;

    assert(copy);
    memcpy(copy, line, len);
    status = line_parser_simd_parse(plan, copy, len, b, why);
    if (status)
        assert(status == PS_EDATA && why->text[0] && b->n == n && b->n_keys == n_keys);
    free(copy);
    return status;
}

static void check_line(struct ways *w, const uint8_t *line, size_t len)
{
    struct err want_why = { 0 }, why = { 0 };
    int want;

    batch_clear(&w->want);
    want = parse(&w->plain, line, len, &w->want, &want_why);
    if (!want) {
        check_sample(&w->want);
        check_record(w);
    }
    must(parse(&w->plain, line, len, &w->want, &want_why) - want);
    for (enum simd s = SIMD_PLAIN; s < SIMD_END; s++) {
        if (!w->quick[s].simd)
            continue;
        batch_clear(&w->got);
        for (int i = 0; i < 2; i++)
            must(parse(&w->quick[s], line, len, &w->got, &why) - want);
        check_same(&w->want, &w->got);
        assert(strcmp(why.text, want_why.text) == 0);
    }
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    const struct schema_text *text = &schemas[harness_number(&in, 1) % COUNT_OF(schemas)];
    struct schema *schema;
    struct err err = { 0 };
    struct ways w;

    must(schema_new(text, NULL, &schema, &err));
    ways_init(&w, schema);
    for (unsigned i = 0; i < LINES_MAX && harness_left(&in); i++) {
        const uint8_t *end = memchr(in.at, '\n', harness_left(&in));
        size_t len = end ? (size_t)(end - in.at) : harness_left(&in);

        check_line(&w, in.at, len);
        in.at += len + (end != NULL);
    }
    ways_deinit(&w);
    schema_free(schema);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const char *const lines[COUNT_OF(schemas)] = {
        "1\t1\t-"
        "1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t"
        "25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5"
        "f6\t"
        "1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a17"
        "1ecb\t"
        "c5c50484\te8b83407\t9727dd16\n",
        "1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25"
        "c83c98\t"
        "7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6"
        "ef\t"
        "8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c5"
        "0484\t"
        "e8b83407\t9727dd16\n",
        "1,3.5,-2,\"a,\"\"b\",x\n0,,1e6,,\n",
        ">50K, 3, 77.5, Private, ?\n<=50K, 4, -1, , b\n",
        "3.5\t1\ta|b|a\tc\n-0\t0\t\t|x|\n",
    };

    if (i >= COUNT_OF(schemas))
        return false;
    harness_put_number(out, i, 1);
    harness_put_text(out, lines[i]);
    return true;
}
