#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <sys/stat.h>

#include "worker/data/data_loader.h"

struct bench {
    struct fixture_folder folder;
    struct schema *schema;
    char path[FIXTURE_PATH_MAX];
    char *paths[1];
    struct data_loader_options options;
};

/* A log of n rows in the layout `label,number`; row `bad` (if within n) is malformed. */
static void bench_new(struct bench *b, uint32_t n, uint32_t bad)
{
    struct schema_text text = {
        .delimiter = ",", .columns = "y,row", .label = "y", .numeric = "row"
    };
    char *log = memory_alloc((size_t)n * 20 + 1);
    size_t at = 0;

    text.numeric_as = SCHEMA_RAW;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)sprintf(log + at, "%u,%s%u\n", i & 1, i == bad ? "x" : "", i);
    memset(b, 0, sizeof *b);
    fixture_folder_new(&b->folder);
    fixture_write(&b->folder, "log", log, at, b->path);
    free(log);
    b->schema = fixture_schema(&text, NULL);
    b->paths[0] = b->path;
    b->options = (struct data_loader_options){ .schema = b->schema,
                                               .paths = b->paths,
                                               .n_paths = 1,
                                               .n_ranks = 1,
                                               .by_rows = true,
                                               .batch = 10,
                                               .queue = 4,
                                               .labelled = true };
}

static void bench_free(struct bench *b)
{
    schema_free(b->schema);
    fixture_folder_free(&b->folder);
}

static struct data_loader *open_well(const struct bench *b)
{
    struct data_loader *f = NULL;
    struct err err;

    if (data_loader_open(&b->options, &f, &err))
        fail_msg("%s", err.text);
    return f;
}

static void the_order_does_not_depend_on_the_depth_of_the_queue(void **state)
{
    static const uint32_t depths[] = { 1, 2, 7, 200 };
    uint64_t first = 0;
    struct bench b;

    (void)state;
    bench_new(&b, 1234, UINT32_MAX);
    b.options.shuffle_rows = 100;
    b.options.seed = 5;
    for (size_t i = 0; i < COUNT_OF(depths); i++) {
        uint64_t digest = 0, n_rows = 0, n_batches = 0;
        struct batch *batch;
        struct data_loader *f;
        struct err err;

        b.options.queue = depths[i];
        f = open_well(&b);
        for (;;) {
            assert_int_equal(data_loader_next(f, &batch, &err), 0);
            if (!batch)
                break;
            assert_int_equal(batch->number, n_batches++);
            for (uint32_t j = 0; j < batch->n; j++, n_rows++)
                digest = hash_mix2(digest, (uint64_t)batch->numeric[j]);
        }
        assert_int_equal(n_rows, 1234);
        assert_int_equal(n_batches, 124);
        first = i == 0 ? digest : first;
        assert_true(digest == first);
        assert_int_equal(data_loader_next(f, &batch, &err), 0);
        assert_null(batch);
        data_loader_close(f);
    }
    bench_free(&b);
}

/* A log of n rows of one number and two categoricals, one of them with a few tokens. */
static void bench_new_categorical(struct bench *b, uint32_t n, uint64_t seed)
{
    struct schema_text text = { .delimiter = ",",
                                .columns = "y,row,a,b",
                                .label = "y",
                                .numeric = "row",
                                .categorical = "a,b" };
    char *log = memory_alloc((size_t)n * 40 + 1);
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = hash_mix2(seed, i);

        at += (size_t)sprintf(log + at, "%u,%u,%u,%u\n", i & 1, i, (unsigned)(h % 5),
                              (unsigned)(h >> 32) % (1 + i));
    }
    memset(b, 0, sizeof *b);
    fixture_folder_new(&b->folder);
    fixture_write(&b->folder, "log", log, at, b->path);
    free(log);
    b->schema = fixture_schema(&text, NULL);
    b->paths[0] = b->path;
    b->options = (struct data_loader_options){ .schema = b->schema,
                                               .paths = b->paths,
                                               .n_paths = 1,
                                               .n_ranks = 1,
                                               .by_rows = true,
                                               .queue = 1,
                                               .labelled = true };
}

static void assert_same_batch(const struct batch *a, const struct batch *b)
{
    assert_int_equal(a->n, b->n);
    assert_true(a->number == b->number);
    assert_int_equal(a->n_keys, b->n_keys);
    assert_int_equal(a->n_unique, b->n_unique);
    assert_memory_equal(a->numeric, b->numeric, a->n * a->n_numeric * sizeof *a->numeric);
    assert_memory_equal(a->keys, b->keys, a->n_keys * sizeof *a->keys);
    assert_memory_equal(a->unique, b->unique, a->n_unique * sizeof *a->unique);
    assert_memory_equal(a->row_of, b->row_of, a->n_keys * sizeof *a->row_of);
    assert_memory_equal(a->order, b->order, a->n_keys * sizeof *a->order);
    assert_memory_equal(a->order_starts, b->order_starts,
                        (a->n_unique + 1) * sizeof *a->order_starts);
}

/* Several batches are with the caller at a time. */
static void compare_with_one_thread(const struct bench *b, uint32_t n_threads, uint32_t lend)
{
    struct data_loader *one, *many;
    struct bench alone = *b, other = *b;
    struct batch *wanted, *batch;
    uint64_t n = 0;
    struct err err;

    alone.options.deduper = NULL;
    one = open_well(&alone);
    other.options.n_threads = n_threads;
    other.options.lend = lend;
    many = open_well(&other);
    do {
        assert_int_equal(data_loader_next(one, &wanted, &err), 0);
        if (n >= lend)
            data_loader_release(many);
        assert_int_equal(data_loader_acquire(many, &batch, &err), 0);
        assert_int_equal(batch != NULL, wanted != NULL);
        if (batch)
            assert_same_batch(batch, wanted);
        n++;
    } while (batch);
    data_loader_close(many);
    data_loader_close(one);
}

static void any_number_of_threads_gives_the_batches_of_one(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;

    (void)state;
    for (uint32_t round = 0; round < 12; round++) {
        struct bench b;

        bench_new_categorical(&b, 1 + fixture_draw(seed, &counter, 3000),
                              hash_mix2(seed, round));
        b.options.batch = 1 + fixture_draw(seed, &counter, 200);
        b.options.queue = 1 + fixture_draw(seed, &counter, 8);
        b.options.shuffle_rows = fixture_draw(seed, &counter, 2) * 50;
        compare_with_one_thread(&b, 1 + fixture_draw(seed, &counter, 8),
                                1 + fixture_draw(seed, &counter, 3));
        bench_free(&b);
    }
}

/* Dedup elsewhere: counts what is open, and cannot do every third batch, of which it leaves some numbers. */
struct elsewhere {
    _Atomic uint32_t n_open, n_runs;
    bool is_absent;
};

static void *open_elsewhere(void *arg)
{
    struct elsewhere *e = arg;

    if (e->is_absent)
        return NULL;
    e->n_open++;
    return e;
}

static int run_elsewhere(void *one, struct batch *b)
{
    struct elsewhere *e = one;

    if (e->n_runs++ % 3)
        return batch_dedup(b);
    if (b->n_keys)
        memset(b->row_of, 0xff, b->n_keys * sizeof *b->row_of);
    b->n_unique = 1;
    return PS_EDEVICE;
}

static void close_elsewhere(void *one)
{
    ((struct elsewhere *)one)->n_open--;
}

static void what_is_not_deduped_elsewhere_is_deduped_by_the_threads(void **state)
{
    struct elsewhere e = { 0 };
    const struct batch_deduper deduper = { open_elsewhere, run_elsewhere, close_elsewhere, &e };
    struct bench b;

    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        bench_new_categorical(&b, 900, n_threads);
        b.options.batch = 60;
        b.options.deduper = &deduper;
        e.is_absent = n_threads == 3;
        e.n_runs = 0;
        compare_with_one_thread(&b, n_threads, 2);
        assert_int_equal(e.n_open, 0);
        assert_true(e.is_absent ? !e.n_runs : e.n_runs >= 15);
        bench_free(&b);
    }
}

static void a_feed_may_be_closed_at_any_point(void **state)
{
    struct bench b;

    (void)state;
    bench_new(&b, 300, UINT32_MAX);
    for (uint32_t n_taken = 0; n_taken <= 31; n_taken++) {
        struct data_loader *f;
        struct err err;

        b.options.queue = 1 + n_taken % 3;
        b.options.n_threads = 1 + n_taken % 4;
        f = open_well(&b);
        for (uint32_t i = 0; i < n_taken; i++) {
            struct batch *batch;

            assert_int_equal(data_loader_next(f, &batch, &err), 0);
            assert_true((batch != NULL) == (i < 30));
        }
        data_loader_close(f);
    }
    data_loader_close(NULL);
    bench_free(&b);
}

static void error_comes_behind_the_batches_before_it(uint32_t n_threads)
{
    struct batch *batch;
    struct data_loader *f;
    struct bench b;
    struct err err;

    bench_new(&b, 100, 37);
    b.options.n_threads = n_threads;
    f = open_well(&b);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(data_loader_next(f, &batch, &err), 0);
        assert_int_equal(batch->n, 10);
        assert_true(batch->numeric[0] == (float)(i * 10));
    }
    for (int i = 0; i < 3; i++) {
        memset(&err, 0, sizeof err);
        assert_int_equal(data_loader_next(f, &batch, &err), PS_EDATA);
        assert_null(batch);
        fixture_assert_says(&err, "log:38: column 1 (row): 'x37' is not a number");
        fixture_assert_says(&err, "1 malformed so far, limit 0");
    }
    data_loader_close(f);
    bench_free(&b);
}

static void an_error_comes_behind_the_batches_before_it_and_stays(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++)
        error_comes_behind_the_batches_before_it(n_threads);
}

static bool is_asked_once(const void *arg)
{
    (void)arg;
    return true;
}

/* The caller has all the batches that there is space for, so that the threads wait for it, and it waits for them. */
static void a_stop_ends_the_batches_also_where_all_threads_wait(void **state)
{
    struct batch *batch;
    struct data_loader *f;
    struct bench b;
    struct err err;
    uint32_t n = 0;

    (void)state;
    bench_new(&b, 100000, UINT32_MAX);
    b.options.n_threads = 3;
    b.options.is_stopped = is_asked_once;
    f = open_well(&b);
    do {
        assert_int_equal(data_loader_next(f, &batch, &err), 0);
        n++;
    } while (batch);
    assert_true(n <= 10001);
    assert_int_equal(data_loader_next(f, &batch, &err), 0);
    assert_null(batch);
    data_loader_close(f);
    bench_free(&b);
}

static void counts_are_those_of_the_batches_handed_out(void **state)
{
    struct data_loader_counts counts;
    struct batch *batch;
    struct data_loader *f;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b, 25, 3);
    b.options.n_threads = 3;
    b.options.bad_rows_max = 1;
    f = open_well(&b);
    data_loader_counts(f, &counts);
    assert_int_equal(counts.rows, 0);
    for (uint32_t rows = 0; rows < 24;) {
        assert_int_equal(data_loader_next(f, &batch, &err), 0);
        assert_non_null(batch);
        rows += batch->n;
        data_loader_counts(f, &counts);
        assert_int_equal(counts.rows, rows);
        assert_int_equal(counts.bad_rows, 1);
    }
    assert_int_equal(data_loader_next(f, &batch, &err), 0);
    assert_null(batch);
    data_loader_counts(f, &counts);
    assert_int_equal(counts.rows, 24);
    assert_int_equal(counts.bad_rows, 1);
    assert_int_equal(counts.bytes, 10 * 4 + 15 * 5 + 1);
    data_loader_close(f);
    bench_free(&b);
}

static void an_empty_file_gives_no_batch(void **state)
{
    struct batch *batch;
    struct data_loader *f;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b, 0, 0);
    f = open_well(&b);
    assert_int_equal(data_loader_next(f, &batch, &err), 0);
    assert_null(batch);
    data_loader_close(f);
    bench_free(&b);
}

static void what_cannot_be_fed_is_refused_at_once(void **state)
{
    char none[FIXTURE_PATH_MAX];
    struct schema_text unlabelled = { .preset = "criteo-unlabelled" };
    struct data_loader_options options;
    struct data_loader *f = NULL;
    struct schema *schema;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b, 1, UINT32_MAX);
    options = b.options;
    options.n_paths = 0;
    assert_int_equal(data_loader_open(&options, &f, &err), PS_ESETTING);
    fixture_assert_says(&err, "no data");
    fixture_path(&b.folder, "none", none);
    options = b.options;
    options.paths = (char *[]){ none };
    assert_int_equal(data_loader_open(&options, &f, &err), -ENOENT);
    fixture_assert_says(&err, "none: cannot read");
    schema = fixture_schema(&unlabelled, NULL);
    options = b.options;
    options.schema = schema;
    assert_int_equal(data_loader_open(&options, &f, &err), PS_ESETTING);
    fixture_assert_says(&err, "label: no column is the label");
    assert_null(f);
    schema_free(schema);
    bench_free(&b);
}

static void free_files(char **files, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(files[i]);
    free(files);
}

static void directories_stand_for_their_files_sorted_by_name(void **state)
{
    static const char *const names[] = { "b.tsv", "a.tsv", ".hidden", "c10.tsv", "c9.tsv" };
    static const char *const wanted[] = { "b.tsv", "a.tsv", "b.tsv", "c10.tsv", "c9.tsv" };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], first[FIXTURE_PATH_MAX], *paths[2], **files = NULL;
    struct err err;
    uint32_t n = 0;

    (void)state;
    fixture_folder_new(&folder);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        fixture_write_text(&folder, names[i], "x\n", i == 0 ? first : path);
    fixture_path(&folder, "below", path);
    assert_int_equal(mkdir(path, 0700), 0);
    paths[0] = first;
    paths[1] = folder.path;
    assert_int_equal(data_loader_expand(paths, 2, &files, &n, &err), 0);
    assert_int_equal(n, COUNT_OF(wanted));
    for (uint32_t i = 0; i < n; i++)
        assert_string_equal(strrchr(files[i], '/') + 1, wanted[i]);
    free_files(files, n);
    fixture_folder_free(&folder);
}

static void paths_that_hold_nothing_are_refused(void **state)
{
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], *paths[1], **files = NULL;
    struct err err;
    uint32_t n = 0;

    (void)state;
    fixture_folder_new(&folder);
    paths[0] = folder.path;
    assert_int_equal(data_loader_expand(paths, 1, &files, &n, &err), PS_EDATA);
    fixture_assert_says(&err, "a directory without a data file");
    fixture_write_text(&folder, ".hidden", "x\n", path);
    assert_int_equal(data_loader_expand(paths, 1, &files, &n, &err), PS_EDATA);
    fixture_path(&folder, "none", path);
    paths[0] = path;
    assert_int_equal(data_loader_expand(paths, 1, &files, &n, &err), -ENOENT);
    fixture_assert_says(&err, "none: cannot open");
    assert_int_equal(data_loader_expand(paths, 0, &files, &n, &err), PS_ESETTING);
    assert_null(files);
    fixture_folder_free(&folder);
}

static void rows_are_counted_without_headers_and_empty_lines(void **state)
{
    struct schema_text text = { .delimiter = ",", .header = true, .categorical = "*" };
    struct fixture_folder folder;
    char a[FIXTURE_PATH_MAX], b[FIXTURE_PATH_MAX], c[FIXTURE_PATH_MAX];
    char *paths[] = { a, b, c };
    struct schema *schema = fixture_schema(&text, "p,q");
    struct err err;
    uint64_t n = 0;

    (void)state;
    fixture_folder_new(&folder);
    fixture_write_text(&folder, "a", "p,q\n1,2\n\nmalformed\n3,4", a);
    fixture_write_text(&folder, "b", "", b);
    fixture_write_text(&folder, "c", "p,q\n", c);
    assert_int_equal(data_loader_count_rows(paths, 3, schema, &n, &err), 0);
    assert_int_equal(n, 3);
    fixture_path(&folder, "none", c);
    assert_int_equal(data_loader_count_rows(paths, 3, schema, &n, &err), -ENOENT);
    assert_int_equal(n, 3);
    schema_free(schema);
    fixture_folder_free(&folder);
}

#ifdef PS_FAULTS
/* The k-th allocation of any thread fails: those batches that come are right, and the others are refused. */
static void a_failed_allocation_of_a_thread_is_reported_in_its_place(void **state)
{
    uint64_t seed = fixture_seed(__func__);
    bool failed = true;
    struct bench b;

    (void)state;
    bench_new_categorical(&b, 2000, seed);
    b.options.batch = 300;
    b.options.n_threads = 3;
    for (long k = 0; failed; k += 1 + k / 8) {
        uint64_t n = 0, n_rows = 0;
        struct data_loader *f = NULL;
        struct batch *batch = NULL;
        struct err err;
        int status;

        memory_fail_anywhere(k, 1);
        status = data_loader_open(&b.options, &f, &err);
        while (!status && (status = data_loader_next(f, &batch, &err)) == 0 && batch) {
            assert_true(batch->number == n++);
            n_rows += batch->n;
        }
        failed = memory_n_failed_anywhere() > 0;
        memory_fail_anywhere(-1, 0);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true(status != 0 || n_rows == 2000);
        if (f && status) {
            assert_int_equal(data_loader_next(f, &batch, &err), -ENOMEM);
            assert_null(batch);
        }
        data_loader_close(f);
    }
    bench_free(&b);
}

static void every_failed_allocation_of_opening_is_reported(void **state)
{
    char **files = NULL, *paths[1];
    struct bench b;
    struct err err;
    uint32_t n = 0;
    int status = -1;

    (void)state;
    bench_new(&b, 10, UINT32_MAX);
    for (long k = 0; status != 0; k++) {
        struct data_loader *f = NULL;

        memory_fail_after(k);
        status = data_loader_open(&b.options, &f, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        data_loader_close(f);
    }
    paths[0] = b.folder.path;
    status = -1;
    for (long k = 0; status != 0; k++) {
        memory_fail_after(k);
        status = data_loader_expand(paths, 1, &files, &n, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
    }
    free_files(files, n);
    bench_free(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_does_not_depend_on_the_depth_of_the_queue),
        cmocka_unit_test(any_number_of_threads_gives_the_batches_of_one),
        cmocka_unit_test(what_is_not_deduped_elsewhere_is_deduped_by_the_threads),
        cmocka_unit_test(a_stop_ends_the_batches_also_where_all_threads_wait),
        cmocka_unit_test(a_feed_may_be_closed_at_any_point),
        cmocka_unit_test(an_error_comes_behind_the_batches_before_it_and_stays),
        cmocka_unit_test(counts_are_those_of_the_batches_handed_out),
        cmocka_unit_test(an_empty_file_gives_no_batch),
        cmocka_unit_test(what_cannot_be_fed_is_refused_at_once),
        cmocka_unit_test(directories_stand_for_their_files_sorted_by_name),
        cmocka_unit_test(paths_that_hold_nothing_are_refused),
        cmocka_unit_test(rows_are_counted_without_headers_and_empty_lines),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_allocation_of_a_thread_is_reported_in_its_place),
        cmocka_unit_test(every_failed_allocation_of_opening_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
