/*
 * The click logs that the project is measured on, where they are at hand: under
 * $PS_SHARED/data, else ../shared/data. Without them these tests are skipped, but not in CI.
 * The census set stands in the tree.
 */
#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <math.h>
#include <xxhash.h>

#include "worker/data/data_loader.h"
#include "worker/data/moments.h"

#define ADULT_COLUMNS                                                                      \
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship," \
    "race,sex,capital-gain,capital-loss,hours-per-week,native-country,income"

/* What a whole pass over files adds up to. */
struct total {
    uint64_t rows, positive, keys, bad_rows, bytes;
    double dense;
    uint64_t seconds_ns;
};

/* First thing in a test: one that is skipped does not come back to free what it has. */
static void shared(const char *name, char path[FIXTURE_PATH_MAX])
{
    const char *root = getenv("PS_SHARED"), *ci = getenv("CI");

    snprintf(path, FIXTURE_PATH_MAX, "%s/data/%s", root ? root : "../shared", name);
    if (access(path, R_OK) == 0)
        return;
    if (ci && strcmp(ci, "true") == 0)
        fail_msg("%s is not there", path);
    print_message("skipped: %s is not there\n", path);
    skip();
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void add_batch(struct total *t, const struct batch *b)
{
    t->rows += b->n;
    t->keys += b->n_keys;
    for (uint32_t i = 0; i < b->n; i++)
        t->positive += b->label[i] > 0.5f;
    for (uint32_t i = 0; i < b->n * b->n_numeric; i++)
        t->dense += (double)b->numeric[i];
}

static void read_whole(const struct schema *s, char *path, struct data_loader_range range,
                       bool labelled, struct total *ret)
{
    struct data_loader_options options = { .schema = s,
                                           .paths = &path,
                                           .n_paths = 1,
                                           .range = range,
                                           .n_ranks = 1,
                                           .by_rows = true,
                                           .batch = 128,
                                           .queue = 8,
                                           .labelled = labelled };
    uint64_t start = now_ns();
    struct data_loader_counts counts;
    struct batch *batch;
    struct data_loader *f = NULL;
    struct err err;

    *ret = (struct total){ 0 };
    if (data_loader_open(&options, &f, &err))
        fail_msg("%s", err.text);
    for (;;) {
        if (data_loader_next(f, &batch, &err))
            fail_msg("%s", err.text);
        if (!batch)
            break;
        add_batch(ret, batch);
    }
    data_loader_counts(f, &counts);
    ret->bad_rows = counts.bad_rows;
    ret->bytes = counts.bytes;
    ret->seconds_ns = now_ns() - start;
    assert_int_equal(counts.rows, ret->rows);
    data_loader_close(f);
}

static void criteo_has_the_fingerprint_of_the_golden_trace(void **state)
{
    struct schema *s;
    char path[FIXTURE_PATH_MAX];
    struct total all, tail;

    (void)state;
    shared("criteo/criteo_dev_110000.tsv.zst", path);
    s = fixture_schema(&(struct schema_text){ .preset = "criteo" }, NULL);
    read_whole(s, path, (struct data_loader_range){ 0 }, true, &all);
    assert_int_equal(all.rows, 110000);
    assert_int_equal(all.positive, 28243);
    assert_int_equal(all.keys, 110000 * 26);
    assert_true(fabs(all.dense - 2732569.133366) < 1e-6);
    read_whole(s, path, (struct data_loader_range){ 99000, 0 }, true, &tail);
    assert_int_equal(tail.rows, 11000);
    print_message("criteo, zstd, batches of 128 with unique keys: %.0f MB/s of text\n",
                  (double)all.bytes / ((double)all.seconds_ns * 1e-3));
    schema_free(s);
}

static void add_bits(uint64_t *digest, const void *bytes, size_t n_bytes)
{
    *digest = XXH3_64bits_withSeed(bytes, n_bytes, *digest);
}

/* Of every bit of every batch of a pass. */
static uint64_t digest_of(const struct data_loader_options *options,
                          struct data_loader_counts *counts)
{
    uint64_t digest = 0;
    struct batch *b;
    struct data_loader *f;
    struct err err;

    if (data_loader_open(options, &f, &err))
        fail_msg("%s", err.text);
    for (;;) {
        if (data_loader_next(f, &b, &err))
            fail_msg("%s", err.text);
        if (!b)
            break;
        add_bits(&digest, b->label, b->n * sizeof *b->label);
        add_bits(&digest, b->numeric, (size_t)b->n * b->n_numeric * sizeof *b->numeric);
        add_bits(&digest, b->starts, ((size_t)b->n * b->n_fields + 1) * sizeof *b->starts);
        add_bits(&digest, b->keys, b->n_keys * sizeof *b->keys);
        add_bits(&digest, b->unique, b->n_unique * sizeof *b->unique);
        add_bits(&digest, b->row_of, b->n_keys * sizeof *b->row_of);
    }
    data_loader_counts(f, counts);
    data_loader_close(f);
    return digest;
}

/* The digests are of what the plain way of reading rows gave, before there was another, and
 * before there was a cache. */
static void criteo_ends_in_the_same_bits_by_every_way(void **state)
{
    static const struct {
        uint32_t window, batch, n_ranks;
        uint64_t digest;
    } passes[] = { { 0, 2048, 1, UINT64_C(0xbb946ba4186ebeef) },
                   { 10000, 2048, 1, UINT64_C(0xdf7fe5ff94f7c4e7) },
                   { 1000, 77, 3, UINT64_C(0x6c1fba83a7fa5934) } };
    struct schema *s;
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct data_loader_counts counts;

    (void)state;
    shared("criteo/criteo_dev_110000.tsv.zst", path);
    s = fixture_schema(&(struct schema_text){ .preset = "criteo" }, NULL);
    fixture_folder_new(&folder);
    for (size_t i = 0; i < COUNT_OF(passes); i++) {
        struct data_loader_options options = { .schema = s,
                                               .paths = (char *[]){ path },
                                               .n_paths = 1,
                                               .n_ranks = passes[i].n_ranks,
                                               .rank = passes[i].n_ranks / 2,
                                               .by_rows = true,
                                               .batch = passes[i].batch,
                                               .shuffle_rows = passes[i].window,
                                               .seed = 7,
                                               .queue = 4,
                                               .labelled = true };

        assert_true(digest_of(&options, &counts) == passes[i].digest);
        assert_int_equal(counts.cached, 0);
        options.data_cache = folder.path;
        assert_true(digest_of(&options, &counts) == passes[i].digest);
        assert_int_equal(counts.cached, i == 0 ? 0 : 110000);
        assert_true(digest_of(&options, &counts) == passes[i].digest);
        assert_int_equal(counts.cached, 110000);
        assert_int_equal(counts.bytes, 26741589);
    }
    fixture_folder_free(&folder);
    schema_free(s);
}

static void criteo_without_labels_is_read_by_either_preset(void **state)
{
    static const char *const presets[] = { "criteo", "criteo-unlabelled" };
    char path[FIXTURE_PATH_MAX];
    struct total totals[2];

    (void)state;
    shared("criteo/criteo_test_unlabelled.tsv.zst", path);
    for (size_t i = 0; i < 2; i++) {
        struct schema *s = fixture_schema(&(struct schema_text){ .preset = presets[i] }, NULL);

        read_whole(s, path, (struct data_loader_range){ 0 }, false, &totals[i]);
        assert_int_equal(totals[i].rows, 18181);
        assert_int_equal(totals[i].positive, 0);
        assert_int_equal(totals[i].bad_rows, 0);
        schema_free(s);
    }
    assert_true(totals[0].dense == totals[1].dense);
}

static void the_terabyte_logs_are_read_by_the_same_preset(void **state)
{
    struct schema *s;
    char path[FIXTURE_PATH_MAX];
    struct total total;

    (void)state;
    shared("criteo_1tb_head/criteo_1tb_day0_10k.tsv.zst", path);
    s = fixture_schema(&(struct schema_text){ .preset = "criteo" }, NULL);
    read_whole(s, path, (struct data_loader_range){ 0 }, true, &total);
    assert_int_equal(total.rows, 10000);
    assert_int_equal(total.positive, 265);
    assert_int_equal(total.bad_rows, 0);
    schema_free(s);
}

static void avazu_has_names_and_no_numeric_column(void **state)
{
    struct schema_text text = {
        .delimiter = ",", .header = true, .label = "click", .categorical = "*", .ignored = "id"
    };
    struct schema *s = NULL;
    char path[FIXTURE_PATH_MAX];
    struct total total;
    struct err err;

    (void)state;
    shared("avazu/avazu_train20k.csv.zst", path);
    if (schema_open(&text, NULL, path, &s, &err))
        fail_msg("%s", err.text);
    assert_int_equal(schema_n_numeric(s), 0);
    assert_int_equal(schema_n_fields(s), 22);
    assert_string_equal(schema_field_name(s, 0), "hour");
    read_whole(s, path, (struct data_loader_range){ 0 }, true, &total);
    assert_int_equal(total.rows, 20000);
    assert_int_equal(total.bad_rows, 0);
    assert_true(fabs((double)total.positive / 20000 - 0.166) < 0.0005);
    schema_free(s);
}

static void read_adult(const struct schema *s, const char *name, uint64_t rows,
                       uint64_t positive)
{
    char path[FIXTURE_PATH_MAX];
    struct total total;
    uint64_t n_rows = 0;
    struct err err;

    snprintf(path, sizeof path, "tests/data/%s", name);
    read_whole(s, path, (struct data_loader_range){ 0 }, true, &total);
    assert_int_equal(total.rows, rows);
    assert_int_equal(total.positive, positive);
    assert_int_equal(total.bad_rows, 0);
    assert_int_equal(data_loader_count_rows((char *[]){ path }, 1, s, &n_rows, &err), 0);
    assert_int_equal(n_rows, rows);
}

static void the_adult_data_is_read_as_it_was_published(void **state)
{
    struct schema_text text = { .delimiter = ",\\s",
                                .columns = ADULT_COLUMNS,
                                .label = "income",
                                .label_positive = ">50K,>50K.",
                                .numeric = "age,fnlwgt,education-num,capital-gain,capital-loss,"
                                           "hours-per-week",
                                .categorical = "*",
                                .missing = "?",
                                .numeric_as = SCHEMA_STANDARDISE };
    struct schema *s = fixture_schema(&text, NULL);
    char *path = (char[]){ "tests/data/adult.data.zst" };
    float mean[6], std[6];
    struct total total;
    struct err err;

    (void)state;
    assert_int_equal(schema_n_numeric(s), 6);
    assert_int_equal(schema_n_fields(s), 8);
    read_adult(s, "adult.data.zst", 32561, 7841);
    read_adult(s, "adult.test.zst", 16281, 3846);
    assert_int_equal(moments_measure(s, NULL, &path, 1, UINT64_MAX, mean, std, &err), 0);
    assert_true(fabsf(mean[0] - 38.58165f) < 1e-4f); /* the mean age of adult.data */
    schema_set_moments(s, mean, std);
    read_whole(s, path, (struct data_loader_range){ 0 }, true, &total);
    assert_true(fabs(total.dense) < 1);
    schema_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(criteo_has_the_fingerprint_of_the_golden_trace),
        cmocka_unit_test(criteo_ends_in_the_same_bits_by_every_way),
        cmocka_unit_test(criteo_without_labels_is_read_by_either_preset),
        cmocka_unit_test(the_terabyte_logs_are_read_by_the_same_preset),
        cmocka_unit_test(avazu_has_names_and_no_numeric_column),
        cmocka_unit_test(the_adult_data_is_read_as_it_was_published),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
