/* A pass that passes over its first batches gives the others as the one that gives all of them. */
#include <errno.h>

#include "tests/unit/data/fixture.h"
#include "worker/data/loader_pass.h"

#define N_ROWS 203u
#define BATCH 10u
#define N_BATCHES_MAX 64u

static const struct schema_text text = { .delimiter = ",",
                                         .columns = "y,row,token",
                                         .label = "y",
                                         .numeric = "row",
                                         .categorical = "token",
                                         .numeric_as = SCHEMA_RAW };

struct bench {
    struct fixture_folder folder;
    struct schema *schema;
    char path[FIXTURE_PATH_MAX];
    char *paths[1];
    struct data_loader_options options;
};

/* Every 13th row is malformed. */
static void bench_new(struct bench *b, uint32_t shuffle, uint32_t n_ranks)
{
    char *rows = memory_alloc(N_ROWS * 40);
    size_t at = 0;

    memset(b, 0, sizeof *b);
    fixture_folder_new(&b->folder);
    b->schema = fixture_schema(&text, NULL);
    for (uint32_t i = 0; i < N_ROWS; i++)
        at += (size_t)sprintf(rows + at, "%u,%s%u,t%u\n", i & 1, i % 13 ? "" : "bad", i, i % 7);
    fixture_write(&b->folder, "part", rows, at, b->path);
    free(rows);
    b->paths[0] = b->path;
    b->options = (struct data_loader_options){ .schema = b->schema,
                                               .paths = b->paths,
                                               .n_paths = 1,
                                               .n_ranks = n_ranks,
                                               .by_rows = true,
                                               .batch = BATCH,
                                               .queue = 1,
                                               .shuffle_rows = shuffle,
                                               .seed = 5,
                                               .bad_rows_max = N_ROWS,
                                               .labelled = true };
}

static void bench_free(struct bench *b)
{
    schema_free(b->schema);
    fixture_folder_free(&b->folder);
}

/* The row numbers in each batch, and what was counted. */
struct seen {
    uint64_t first_number;
    uint32_t n, sizes[N_BATCHES_MAX];
    float rows[N_BATCHES_MAX][BATCH];
    struct data_loader_counts counts;
};

static void run(struct bench *b, uint64_t skip, struct seen *ret)
{
    struct batch batch;
    struct loader_pass *p;
    struct err err;

    memset(ret, 0, sizeof *ret);
    b->options.skip = skip;
    assert_int_equal(batch_init(&batch, BATCH, 1, 1), 0);
    assert_int_equal(loader_pass_new(&b->options, NULL, &p, &err), 0);
    for (;;) {
        if (loader_pass_fill(p, &batch, &err))
            fail_msg("%s", err.text);
        if (!batch.n)
            break;
        if (!ret->n)
            ret->first_number = batch.number;
        memcpy(ret->rows[ret->n], batch.numeric, batch.n * sizeof(float));
        ret->sizes[ret->n++] = batch.n;
    }
    loader_pass_counts(p, &ret->counts);
    loader_pass_free(p);
    batch_deinit(&batch);
}

static void check_each_skip(struct bench *b)
{
    struct seen all, rest;

    run(b, 0, &all);
    for (uint32_t skip = 0; skip <= all.n; skip++) {
        uint64_t rows_skipped = 0;

        run(b, skip, &rest);
        assert_int_equal(rest.n, all.n - skip);
        assert_true(!rest.n || rest.first_number == skip);
        assert_memory_equal(rest.sizes, all.sizes + skip, rest.n * sizeof *rest.sizes);
        assert_memory_equal(rest.rows, all.rows + skip, rest.n * sizeof *rest.rows);
        for (uint32_t k = 0; k < skip; k++)
            rows_skipped += all.sizes[k];
        assert_int_equal(rest.counts.rows, all.counts.rows - rows_skipped);
        assert_int_equal(rest.counts.bad_rows, all.counts.bad_rows);
        assert_int_equal(rest.counts.skipped, skip);
    }
}

static void what_follows_is_the_same_in_every_order_share_and_draw(void **state)
{
    static const uint32_t windows[] = { 0, 7, 50 };

    (void)state;
    for (uint32_t i = 0; i < COUNT_OF(windows); i++)
        for (uint32_t n_ranks = 1; n_ranks <= 3; n_ranks++) {
            struct bench b;

            bench_new(&b, windows[i], n_ranks);
            check_each_skip(&b);
            b.options.keep_negatives = 0.4f;
            check_each_skip(&b);
            bench_free(&b);
        }
}

static void of_the_negative_rows_a_part_is_drawn_and_of_the_others_all(void **state)
{
    bool is_there[N_ROWS] = { false };
    uint32_t n_negative = 0;
    struct seen all;
    struct bench b;

    (void)state;
    bench_new(&b, 7, 1);
    b.options.keep_negatives = 0.4f;
    run(&b, 0, &all);
    for (uint32_t i = 0; i < all.n; i++)
        for (uint32_t k = 0; k < all.sizes[i]; k++)
            is_there[(uint32_t)all.rows[i][k]] = true;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        n_negative += is_there[i] && i % 2 == 0;
        assert_true(is_there[i] || i % 2 == 0 || i % 13 == 0);
    }
    if (n_negative < 20 || n_negative > 60) /* of 94 with this seed: 37.6 are expected */
        fail_msg("%u negative rows were drawn", n_negative);
    for (uint32_t i = 0; i + 1 < all.n; i++)
        assert_int_equal(all.sizes[i], BATCH); /* full ones all the same */
    bench_free(&b);
}

static void more_than_there_is_leaves_nothing_and_reports_how_much_there_was(void **state)
{
    struct seen all, rest;
    struct bench b;

    (void)state;
    bench_new(&b, 0, 1);
    run(&b, 0, &all);
    run(&b, all.n + 40, &rest);
    assert_int_equal(rest.n, 0);
    assert_int_equal(rest.counts.skipped, all.n);
    bench_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_follows_is_the_same_in_every_order_share_and_draw),
        cmocka_unit_test(of_the_negative_rows_a_part_is_drawn_and_of_the_others_all),
        cmocka_unit_test(more_than_there_is_leaves_nothing_and_reports_how_much_there_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
