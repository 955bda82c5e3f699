#include "tests/unit/data/cache_bench.h"

static void a_later_pass_reads_the_cache_and_gives_the_same_batches(void **state)
{
    static const char *const separators[] = { "", "|" };

    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (uint32_t bad = 0; bad < 8; bad += 7) {
            struct cache_bench b;

            cache_bench_new(&b, separators[i], bad);
            assert_int_equal(run_same(&b), 0);
            assert_int_equal(n_files(&b), 2);
            assert_int_equal(run_same(&b), 120);
            b.options.shuffle_rows = 16;
            assert_int_equal(run_same(&b), 120);
            b.options.seed = 4;
            b.options.batch = 5;
            assert_int_equal(run_same(&b), 120);
            assert_int_equal(b.n_notices, 0);
            cache_bench_free(&b);
        }
}

/* Whatever part of the files is asked for, when the caches are made and when they are read. */
static void ranges_ranks_and_limits_of_malformed_rows_are_those_of_the_text(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;

    (void)state;
    for (int round = 0; round < 40; round++) {
        struct cache_bench b;

        cache_bench_new(&b, fixture_draw(seed, &counter, 2) ? "|" : "", 9);
        for (int i = 0; i < 6; i++) {
            b.options.n_ranks = 1 + fixture_draw(seed, &counter, 3);
            b.options.rank = fixture_draw(seed, &counter, b.options.n_ranks);
            b.options.by_rows = fixture_draw(seed, &counter, 2);
            b.options.shuffle_rows = fixture_draw(seed, &counter, 2) * 20;
            b.options.bad_rows_max = fixture_draw(seed, &counter, 2) ? 1000 : 5;
            b.options.range.first_row = fixture_draw(seed, &counter, 60);
            b.options.range.end_row =
                fixture_draw(seed, &counter, 2) ? 60 + fixture_draw(seed, &counter, 60) : 0;
            run_same(&b);
        }
        assert_int_equal(b.n_notices, 0);
        cache_bench_free(&b);
    }
}

static void a_pass_that_ends_inside_a_file_leaves_a_whole_cache(void **state)
{
    struct cache_bench b;

    (void)state;
    cache_bench_new(&b, "", 0);
    b.options.range.end_row = 30;
    assert_int_equal(run_same(&b), 0);
    b.options.range.end_row = 60;
    assert_int_equal(run_same(&b), 60);
    b.options.range.end_row = 0;
    assert_int_equal(run_same(&b), 70);
    assert_int_equal(run_same(&b), 120);
    cache_bench_free(&b);
}

static void a_file_that_changed_has_no_cache(void **state)
{
    struct timespec times[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    struct cache_bench b;

    (void)state;
    cache_bench_new(&b, "", 0);
    run_same(&b);
    assert_int_equal(utimensat(AT_FDCWD, b.names[0], times, 0), 0);
    assert_int_equal(run_same(&b), 50);
    assert_non_null(strstr(b.notice, "the file has changed since"));
    assert_int_equal(run_same(&b), 120);
    write_log(&b, 1, 50, 0, "other");
    assert_int_equal(run_same(&b), 70);
    write_log(&b, 1, 51, 0, "");
    assert_int_equal(run_same(&b), 70);
    assert_int_equal(run_same(&b), 121);
    assert_int_equal(b.n_notices, 3);
    assert_int_equal(n_files(&b), 2);
    cache_bench_free(&b);
}

static void another_schema_has_another_cache(void **state)
{
    const struct schema_text standard = { .delimiter = ",",
                                          .header = true,
                                          .label = "y",
                                          .numeric = "a,b",
                                          .categorical = "c,d",
                                          .numeric_as = SCHEMA_STANDARDISE };
    struct schema *other = fixture_schema(&standard, "y,a,b,c,d"), *first;
    struct cache_bench b;

    (void)state;
    cache_bench_new(&b, "", 0);
    run_same(&b);
    first = b.schema;
    b.options.schema = other;
    assert_int_equal(run_same(&b), 0);
    assert_int_equal(n_files(&b), 4);
    assert_int_equal(run_same(&b), 120);
    schema_set_moments(other, (float[]){ 5, 6 }, (float[]){ 7, 8 });
    assert_int_equal(run_same(&b), 0);
    assert_int_equal(run_same(&b), 120);
    assert_int_equal(n_files(&b), 6);
    b.options.schema = first;
    assert_int_equal(run_same(&b), 120);
    assert_int_equal(schema_use_keys(first, SCHEMA_KEYS_BY_NAME, NULL), 0);
    assert_int_equal(run_same(&b), 0);
    assert_int_equal(run_same(&b), 120);
    assert_int_equal(n_files(&b), 8);
    assert_int_equal(schema_use_keys(first, SCHEMA_KEYS_BY_POSITION, NULL), 0);
    assert_int_equal(run_same(&b), 120);
    assert_int_equal(b.n_notices, 0);
    schema_free(other);
    cache_bench_free(&b);
}

static void a_pass_that_is_given_up_leaves_no_cache(void **state)
{
    struct batch batch;
    struct cache_bench b;
    struct loader_pass *p;
    struct err err;

    (void)state;
    cache_bench_new(&b, "", 0);
    assert_int_equal(batch_init(&batch, 8, 2, 2), 0);
    assert_int_equal(loader_pass_new(&b.options, NULL, &p, &err), 0);
    assert_int_equal(loader_pass_fill(p, &batch, &err), 0);
    assert_int_equal(n_files(&b), 1);
    loader_pass_free(p);
    assert_int_equal(n_files(&b), 0);
    batch_deinit(&batch);
    cache_bench_free(&b);
}

static void what_a_dead_writer_left_is_removed(void **state)
{
    char path[200];
    struct cache_bench b;
    pid_t dead;
    int fd;

    (void)state;
    cache_bench_new(&b, "", 0);
    run_same(&b);
    dead = fork();
    if (dead == 0)
        _exit(0);
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    snprintf(path, sizeof path, "%s.%ld-0123456789abcdef.tmp", cache_of(&b, 0), (long)dead);
    assert_int_equal(b.disk.ops.create(&b.disk, path, &fd), 0);
    assert_int_equal(b.disk.ops.close(&b.disk, fd), 0);
    snprintf(path, sizeof path, "%s.%ld-0123456789abcdef.tmp", cache_of(&b, 0), (long)getpid());
    assert_int_equal(b.disk.ops.create(&b.disk, path, &fd), 0);
    assert_int_equal(b.disk.ops.close(&b.disk, fd), 0);
    write_log(&b, 0, 71, 0, "");
    run_same(&b);
    assert_int_equal(n_files(&b), 3); /* two caches, and what one that lives is writing */
    cache_bench_free(&b);
}

static void processes_that_share_a_cache_do_not_harm_each_other(void **state)
{
    struct fixture_folder folder;
    struct outcome plain;
    struct cache_bench b;
    pid_t children[4];

    (void)state;
    cache_bench_new(&b, "", 9);
    fixture_folder_new(&folder);
    b.options.cache_files = NULL;
    b.options.data_cache = folder.path;
    b.options.shuffle_rows = 30;
    plain = run_plain(&b);
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            for (int pass = 0; pass < 10; pass++) {
                struct timespec times[2] = { { .tv_sec = 5 * i + pass },
                                             { .tv_sec = 5 * i + pass } };
                struct outcome out;

                utimensat(AT_FDCWD, b.names[0], times, 0);
                out = run(&b.options);
                if (out.status || out.digest != plain.digest || out.rows != plain.rows)
                    _exit(1);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status;

        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    run_same(&b);
    assert_int_equal(run_same(&b), 120);
    fixture_folder_free(&folder);
    cache_bench_free(&b);
}

static void a_loader_reports_its_notices_to_its_caller(void **state)
{
    struct batch *batch;
    struct cache_bench b;
    struct data_loader *f;
    struct err err;

    (void)state;
    cache_bench_new(&b, "", 0);
    run_same(&b);
    crash_files_at(&b.disk, cache_of(&b, 0))->bytes[100] ^= 1;
    assert_int_equal(data_loader_open(&b.options, &f, &err), 0);
    do
        assert_int_equal(data_loader_next(f, &batch, &err), 0);
    while (batch);
    data_loader_close(f);
    assert_int_equal(b.n_notices, 1);
    assert_non_null(strstr(b.notice, "the checksum is wrong"));
    cache_bench_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_pass_reads_the_cache_and_gives_the_same_batches),
        cmocka_unit_test(ranges_ranks_and_limits_of_malformed_rows_are_those_of_the_text),
        cmocka_unit_test(a_pass_that_ends_inside_a_file_leaves_a_whole_cache),
        cmocka_unit_test(a_file_that_changed_has_no_cache),
        cmocka_unit_test(another_schema_has_another_cache),
        cmocka_unit_test(a_pass_that_is_given_up_leaves_no_cache),
        cmocka_unit_test(what_a_dead_writer_left_is_removed),
        cmocka_unit_test(processes_that_share_a_cache_do_not_harm_each_other),
        cmocka_unit_test(a_loader_reports_its_notices_to_its_caller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
