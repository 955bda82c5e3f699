#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <math.h>

#include "worker/data/data_loader.h"
#include "worker/data/synth.h"

static const struct synth_options standard = {
    .rows = 20000,
    .seed = 7,
    .n_numeric = 13,
    .n_categorical = 26,
    .cardinality = 1000,
    .zipf = 1.05,
    .positive_rate = 0.25,
};

static char *slurp(const char *path, size_t *ret_n)
{
    FILE *file = fopen(path, "r");
    char *bytes;

    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *ret_n = (size_t)ftell(file);
    rewind(file);
    bytes = memory_alloc(*ret_n + 1);
    assert_int_equal(fread(bytes, 1, *ret_n, file), *ret_n);
    fclose(file);
    return bytes;
}

static char *write_and_slurp(const struct synth_options *options,
                             const struct fixture_folder *folder, size_t *ret_n)
{
    char path[FIXTURE_PATH_MAX];
    struct err err;

    fixture_path(folder, "log.tsv", path);
    if (synth_write(options, path, &err))
        fail_msg("%s", err.text);
    return slurp(path, ret_n);
}

static void the_seed_decides_every_byte(void **state)
{
    struct synth_options options = standard;
    struct fixture_folder folder;
    size_t n_a, n_b, n_c;
    char *a, *b, *c;

    (void)state;
    options.rows = 500;
    fixture_folder_new(&folder);
    a = write_and_slurp(&options, &folder, &n_a);
    b = write_and_slurp(&options, &folder, &n_b);
    options.seed++;
    c = write_and_slurp(&options, &folder, &n_c);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(a, b, n_a);
    assert_true(n_a != n_c || memcmp(a, c, n_a) != 0);
    free(a);
    free(b);
    free(c);
    fixture_folder_free(&folder);
}

static void parts_written_apart_are_the_whole(void **state)
{
    struct synth_options options = standard;
    struct fixture_folder folder;
    size_t n, n_first, n_second;
    char *whole, *first, *second;

    (void)state;
    options.rows = 300;
    fixture_folder_new(&folder);
    whole = write_and_slurp(&options, &folder, &n);
    options.rows = 100;
    first = write_and_slurp(&options, &folder, &n_first);
    options.first_row = 100;
    options.rows = 200;
    second = write_and_slurp(&options, &folder, &n_second);
    assert_int_equal(n, n_first + n_second);
    assert_memory_equal(whole, first, n_first);
    assert_memory_equal(whole + n_first, second, n_second);
    free(whole);
    free(first);
    free(second);
    fixture_folder_free(&folder);
}

struct tally {
    uint64_t n, n_positive, below[2][1000]; /* by label: how many fell into each thousandth */
    double sum;
};

static void count_row(void *arg, double probability, int label)
{
    struct tally *t = arg;

    assert_true(probability > 0 && probability < 1);
    t->n++;
    t->n_positive += (uint64_t)label;
    t->sum += probability;
    t->below[label][(int)(probability * 1000)]++;
}

/* Within a thousandth of a probability, pairs count half: near enough. */
static double auc_of(const struct tally *t)
{
    double pairs = 0, n_negative_below = 0;

    for (int i = 0; i < 1000; i++) {
        pairs += (double)t->below[1][i] * (n_negative_below + (double)t->below[0][i] / 2);
        n_negative_below += (double)t->below[0][i];
    }
    return pairs / ((double)t->n_positive * (double)(t->n - t->n_positive));
}

static void the_planted_model_can_be_learned_and_has_the_rate(void **state)
{
    static const double rates[] = { 0.25, 0.03, 0.5 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rates); i++) {
        struct synth_options options = standard;
        struct fixture_folder folder;
        struct tally *tally = memory_alloc(sizeof *tally);
        size_t n;
        double auc;

        options.positive_rate = rates[i];
        options.on_row = count_row;
        options.arg = tally;
        fixture_folder_new(&folder);
        free(write_and_slurp(&options, &folder, &n));
        auc = auc_of(tally);
        print_message("positive rate %.3f: mean probability %.4f, Bayes AUC %.4f\n",
                      (double)tally->n_positive / (double)tally->n,
                      tally->sum / (double)tally->n, auc);
        assert_int_equal(tally->n, options.rows);
        assert_true(fabs(tally->sum / (double)tally->n - rates[i]) < 0.1 * rates[i]);
        assert_true(fabs((double)tally->n_positive / (double)tally->n - rates[i]) <
                    0.15 * rates[i]);
        assert_true(auc > 0.7 && auc < 0.95);
        free(tally);
        fixture_folder_free(&folder);
    }
}

/* Reads a log of the criteo layout to its end: rows, positives and a digest of the keys. */
static uint64_t read_log(char *path, uint64_t *ret_rows, double *ret_positive)
{
    struct schema *s = fixture_schema(&(struct schema_text){ .preset = "criteo" }, NULL);
    struct data_loader_options options = { .schema = s,
                                           .paths = &path,
                                           .n_paths = 1,
                                           .n_ranks = 1,
                                           .by_rows = true,
                                           .batch = 100,
                                           .queue = 2,
                                           .labelled = true };
    uint64_t digest = 0;
    struct batch *batch;
    struct data_loader *f = NULL;
    struct err err;

    *ret_rows = 0;
    *ret_positive = 0;
    if (data_loader_open(&options, &f, &err))
        fail_msg("%s", err.text);
    for (;;) {
        if (data_loader_next(f, &batch, &err))
            fail_msg("%s", err.text);
        if (!batch)
            break;
        *ret_rows += batch->n;
        for (uint32_t i = 0; i < batch->n; i++)
            *ret_positive += (double)batch->label[i];
        for (uint32_t i = 0; i < batch->n_keys; i++)
            digest = hash_mix2(digest, batch->keys[i]);
    }
    data_loader_close(f);
    schema_free(s);
    return digest;
}

static void the_feed_reads_what_was_written_packed_or_not(void **state)
{
    struct synth_options options = standard;
    char plain[FIXTURE_PATH_MAX], packed[FIXTURE_PATH_MAX];
    struct fixture_folder folder;
    uint64_t rows, digest;
    double positive;
    struct err err;

    (void)state;
    options.rows = 3000;
    fixture_folder_new(&folder);
    fixture_path(&folder, "a.tsv", plain);
    fixture_path(&folder, "a.tsv.zst", packed);
    assert_int_equal(synth_write(&options, plain, &err), 0);
    assert_int_equal(synth_write(&options, packed, &err), 0);
    digest = read_log(plain, &rows, &positive);
    assert_int_equal(rows, 3000);
    assert_true(positive > 600 && positive < 900);
    assert_true(read_log(packed, &rows, &positive) == digest);
    assert_int_equal(rows, 3000);
    fixture_folder_free(&folder);
}

static void tokens_follow_zipf_within_their_cardinality(void **state)
{
    struct synth_options options = { .rows = 20000,
                                     .seed = 3,
                                     .n_categorical = 1,
                                     .cardinality = 50,
                                     .zipf = 1.0,
                                     .positive_rate = 0.5 };
    struct fixture_folder folder;
    uint32_t counts[64] = { 0 }, n_distinct = 0, largest = 0;
    char tokens[64][9], *text, *line;
    size_t n;

    (void)state;
    fixture_folder_new(&folder);
    text = write_and_slurp(&options, &folder, &n);
    for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        uint32_t i = 0;

        assert_true((line[0] == '0' || line[0] == '1') && line[1] == '\t');
        while (i < n_distinct && strcmp(tokens[i], line + 2) != 0)
            i++;
        assert_true(i < 52);
        if (i == n_distinct)
            snprintf(tokens[n_distinct++], 9, "%s", line + 2);
        counts[i]++;
        largest = counts[i] > largest ? counts[i] : largest;
    }
    assert_int_equal(n_distinct, 51); /* 50 and the missing one */
    /* P(1) = ln 2 / ln 51 of those that are there. */
    assert_true(fabs((double)largest / 20000 - 0.98 * log(2) / log(51)) < 0.015);
    free(text);
    fixture_folder_free(&folder);
}

static void options_out_of_range_are_refused(void **state)
{
    static const struct {
        struct synth_options options;
        const char *says;
    } cases[] = {
        { { .cardinality = 1, .positive_rate = 0.5 }, "0 numeric and 0 categorical columns" },
        { { .n_numeric = 501, .cardinality = 1, .positive_rate = 0.5 }, "501 numeric" },
        { { .n_categorical = 501, .cardinality = 1, .positive_rate = 0.5 }, "501 categorical" },
        { { .n_numeric = 1, .positive_rate = 0.5 }, "cardinality: 0" },
        { { .n_numeric = 1, .cardinality = 1 }, "positive-rate: 0" },
        { { .n_numeric = 1, .cardinality = 1, .positive_rate = 1 }, "positive-rate: 1" },
        { { .n_numeric = 1, .cardinality = 1, .positive_rate = NAN }, "positive-rate: nan" },
        { { .n_numeric = 1, .cardinality = 1, .positive_rate = 0.5, .zipf = -1 }, "zipf: -1" },
        { { .n_numeric = 1, .cardinality = 1, .positive_rate = 0.5, .zipf = NAN },
          "zipf: nan" },
    };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    fixture_path(&folder, "log", path);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(synth_write(&cases[i].options, path, &err), PS_ESETTING);
        fixture_assert_says(&err, cases[i].says);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    fixture_folder_free(&folder);
}

static void a_file_that_cannot_be_written_is_an_errno(void **state)
{
    struct synth_options options = standard;
    struct err err;

    (void)state;
    assert_int_equal(synth_write(&options, "/nowhere/log.tsv", &err), -ENOENT);
    fixture_assert_says(&err, "/nowhere/log.tsv: cannot write");
    assert_int_equal(synth_write(&options, "/dev/full", &err), -ENOSPC);
    fixture_assert_says(&err, "/dev/full: cannot write: No space left");
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported_and_leaves_no_file(void **state)
{
    struct synth_options options = standard;
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    int status = -1;

    (void)state;
    options.rows = 10;
    fixture_folder_new(&folder);
    fixture_path(&folder, "log.zst", path);
    for (long k = 0; status != 0; k++) {
        struct err err;

        memory_fail_after(k);
        status = synth_write(&options, path, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true((access(path, F_OK) == 0) == (status == 0));
    }
    fixture_folder_free(&folder);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_seed_decides_every_byte),
        cmocka_unit_test(parts_written_apart_are_the_whole),
        cmocka_unit_test(the_planted_model_can_be_learned_and_has_the_rate),
        cmocka_unit_test(the_feed_reads_what_was_written_packed_or_not),
        cmocka_unit_test(tokens_follow_zipf_within_their_cardinality),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(a_file_that_cannot_be_written_is_an_errno),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaves_no_file),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
