#include "tests/unit/data/fixture.h"

#include <errno.h>

#include "worker/data/loader_pass.h"

#define ROWS_MAX 4000u

/* Rows say their own number, raw, in their one numeric column; the label is its lowest bit. */
static const struct schema_text numbered = {
    .delimiter = ",",
    .columns = "y,row,token",
    .label = "y",
    .numeric = "row",
    .categorical = "token",
    .numeric_as = SCHEMA_RAW,
};

struct bench {
    struct fixture_folder folder;
    struct schema *schema;
    char names[8][FIXTURE_PATH_MAX];
    char *paths[8];
    uint32_t n_files, n_rows;
    struct data_loader_options options;
};

/* Adds a file of n rows; every `bad`-th row of all is malformed (0: none). */
static void add_file(struct bench *b, uint32_t n, uint32_t bad)
{
    char *text = memory_alloc((size_t)n * 40 + 1), name[16];
    size_t at = 0;

    for (uint32_t end = b->n_rows + n; b->n_rows < end; b->n_rows++)
        at += (size_t)sprintf(text + at, "%u,%s%u,t%u\n%s", b->n_rows & 1,
                              bad && b->n_rows % bad == bad - 1 ? "bad" : "", b->n_rows,
                              b->n_rows % 7, b->n_rows % 11 ? "" : "\n");
    snprintf(name, sizeof name, "part-%u", b->n_files);
    fixture_write(&b->folder, name, text, at, b->names[b->n_files]);
    b->paths[b->n_files] = b->names[b->n_files];
    b->n_files++;
    free(text);
}

static void bench_new(struct bench *b)
{
    memset(b, 0, sizeof *b);
    fixture_folder_new(&b->folder);
    b->schema = fixture_schema(&numbered, NULL);
    b->options = (struct data_loader_options){ .schema = b->schema,
                                               .paths = b->paths,
                                               .n_ranks = 1,
                                               .by_rows = true,
                                               .batch = 5,
                                               .queue = 1,
                                               .labelled = true };
}

static void bench_free(struct bench *b)
{
    schema_free(b->schema);
    fixture_folder_free(&b->folder);
}

/* The numbers of the rows that a pass gives, in order, batches after one another; sizes[i] is
 * batch i's (may be NULL). */
static int run(struct bench *b, uint32_t *rows, uint32_t *ret_n, uint32_t *sizes,
               struct err *err)
{
    struct batch batch;
    struct loader_pass *p;
    int status;

    *ret_n = 0;
    b->options.n_paths = b->n_files;
    status = batch_init(&batch, b->options.batch, 1, 1);
    if (status)
        return status;
    status = loader_pass_new(&b->options, NULL, &p, err);
    for (uint64_t n_batches = 0; !status; n_batches++) {
        status = loader_pass_fill(p, &batch, err);
        if (status || batch.n == 0) {
            loader_pass_free(p);
            break;
        }
        assert_int_equal(batch.number, n_batches);
        if (sizes)
            sizes[n_batches] = batch.n;
        for (uint32_t i = 0; i < batch.n; i++) {
            uint32_t row = (uint32_t)batch.numeric[i];

            assert_true(batch.label[i] == (b->options.labelled ? (float)(row & 1) : 0.0f));
            assert_true(batch.unique[batch.row_of[i]] == batch.keys[i]);
            rows[(*ret_n)++] = row;
        }
    }
    batch_deinit(&batch);
    return status;
}

static uint32_t run_well(struct bench *b, uint32_t *rows)
{
    struct err err;
    uint32_t n;

    if (run(b, rows, &n, NULL, &err))
        fail_msg("%s", err.text);
    return n;
}

static void rows_come_in_file_order_over_all_files(void **state)
{
    uint32_t rows[ROWS_MAX], sizes[ROWS_MAX], n;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b);
    add_file(&b, 7, 0);
    add_file(&b, 0, 0);
    add_file(&b, 1, 0);
    add_file(&b, 14, 0);
    assert_int_equal(run(&b, rows, &n, sizes, &err), 0);
    assert_int_equal(n, 22);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(rows[i], i);
    assert_memory_equal(sizes, ((uint32_t[]){ 5, 5, 5, 5, 2 }), 5 * sizeof *sizes);
    b.options.drop_last = true;
    assert_int_equal(run_well(&b, rows), 20);
    bench_free(&b);
}

static void a_range_counts_malformed_rows_but_not_empty_lines(void **state)
{
    uint32_t rows[ROWS_MAX];
    struct bench b;

    (void)state;
    bench_new(&b);
    add_file(&b, 10, 4); /* 3 and 7 are malformed */
    add_file(&b, 10, 4); /* 11, 15 and 19 */
    b.options.bad_rows_max = 100;
    b.options.range = (struct data_loader_range){ 2, 13 };
    assert_int_equal(run_well(&b, rows), 8);
    assert_memory_equal(rows, ((uint32_t[]){ 2, 4, 5, 6, 8, 9, 10, 12 }), 8 * sizeof *rows);
    b.options.range = (struct data_loader_range){ 16, 0 };
    assert_int_equal(run_well(&b, rows), 3);
    assert_memory_equal(rows, ((uint32_t[]){ 16, 17, 18 }), 3 * sizeof *rows);
    b.options.range = (struct data_loader_range){ 20, 0 };
    assert_int_equal(run_well(&b, rows), 0);
    b.options.range = (struct data_loader_range){ 5, 5 };
    assert_int_equal(run_well(&b, rows), 0);
    bench_free(&b);
}

/* Whatever the files, the range, the batch and the window: the ranks' shares are the
 * range, each row once. */
static void the_shares_of_all_ranks_are_the_range_and_do_not_overlap(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    uint32_t rows[ROWS_MAX];
    uint8_t seen[ROWS_MAX];

    (void)state;
    for (int round = 0; round < 60; round++) {
        struct bench b;
        uint32_t n_all = 0, n_wanted, n_files = 1 + fixture_draw(seed, &counter, 5);
        uint32_t bad = fixture_draw(seed, &counter, 2) ? 13 : 0;

        bench_new(&b);
        for (uint32_t i = 0; i < n_files; i++)
            add_file(&b, fixture_draw(seed, &counter, 300), bad);
        b.options.n_ranks = 1 + fixture_draw(seed, &counter, 5);
        b.options.batch = 1 + fixture_draw(seed, &counter, 40);
        b.options.by_rows = fixture_draw(seed, &counter, 2);
        b.options.shuffle_rows = fixture_draw(seed, &counter, 2) ? 50 : 0;
        b.options.seed = hash_mix2(seed, counter);
        b.options.bad_rows_max = ROWS_MAX;
        if (fixture_draw(seed, &counter, 2))
            b.options.range =
                (struct data_loader_range){ fixture_draw(seed, &counter, b.n_rows + 1),
                                            b.n_rows };
        memset(seen, 0, sizeof seen);
        n_wanted = b.n_rows - (uint32_t)b.options.range.first_row;
        for (uint32_t row = 0; bad && row < b.n_rows; row++)
            n_wanted -= row >= b.options.range.first_row && row % bad == bad - 1;
        for (b.options.rank = 0; b.options.rank < b.options.n_ranks; b.options.rank++) {
            uint32_t n = run_well(&b, rows);

            for (uint32_t i = 0; i < n; i++) {
                assert_in_range(rows[i], b.options.range.first_row, b.n_rows - 1);
                assert_false(seen[rows[i]]++);
            }
            n_all += n;
        }
        assert_int_equal(n_all, n_wanted);
        bench_free(&b);
    }
}

static void in_lock_step_n_workers_of_batch_b_see_one_workers_batch_of_n_times_b(void **state)
{
    uint32_t alone[ROWS_MAX], share[3][ROWS_MAX], n[3], n_alone;
    struct bench b;

    (void)state;
    bench_new(&b);
    add_file(&b, 100, 0);
    add_file(&b, 87, 0);
    b.options.range.first_row = 7;
    b.options.n_ranks = 3;
    b.options.batch = 4;
    for (b.options.rank = 0; b.options.rank < 3; b.options.rank++)
        n[b.options.rank] = run_well(&b, share[b.options.rank]);
    b.options.n_ranks = 1;
    b.options.rank = 0;
    b.options.batch = 12;
    n_alone = run_well(&b, alone);
    assert_int_equal(n_alone, 180);
    for (uint32_t i = 0; i < n_alone; i++) {
        uint32_t step = i / 12, rank = i % 12 / 4, at = step * 4 + i % 4;

        assert_true(at < n[rank]);
        assert_int_equal(share[rank][at], alone[i]);
    }
    bench_free(&b);
}

static void files_are_distributed_whole(void **state)
{
    uint32_t rows[ROWS_MAX];
    struct bench b;

    (void)state;
    bench_new(&b);
    for (int i = 0; i < 5; i++)
        add_file(&b, 3, 0);
    b.options.by_rows = false;
    b.options.n_ranks = 2;
    b.options.rank = 1;
    assert_int_equal(run_well(&b, rows), 6);
    assert_memory_equal(rows, ((uint32_t[]){ 3, 4, 5, 9, 10, 11 }), 6 * sizeof *rows);
    b.options.range = (struct data_loader_range){ 4, 10 };
    assert_int_equal(run_well(&b, rows), 3);
    assert_memory_equal(rows, ((uint32_t[]){ 4, 5, 9 }), 3 * sizeof *rows);
    b.options.n_ranks = 9;
    b.options.rank = 8;
    b.options.range = (struct data_loader_range){ 0 };
    assert_int_equal(run_well(&b, rows), 0);
    bench_free(&b);
}

static void the_seed_alone_decides_how_rows_are_shuffled(void **state)
{
    uint32_t a[ROWS_MAX], again[ROWS_MAX], other[ROWS_MAX], n_moved = 0;
    struct bench b;

    (void)state;
    bench_new(&b);
    add_file(&b, 500, 0);
    b.options.shuffle_rows = 64;
    b.options.seed = 1;
    assert_int_equal(run_well(&b, a), 500);
    assert_int_equal(run_well(&b, again), 500);
    b.options.batch = 77; /* cuts elsewhere, same order */
    assert_int_equal(run_well(&b, other), 500);
    assert_memory_equal(a, again, 500 * sizeof *a);
    assert_memory_equal(a, other, 500 * sizeof *a);
    b.options.seed = 2;
    assert_int_equal(run_well(&b, other), 500);
    assert_memory_not_equal(a, other, 500 * sizeof *a);
    for (uint32_t i = 0; i < 500; i++)
        n_moved += a[i] != i;
    assert_true(n_moved > 450);
    bench_free(&b);
}

static void malformed_rows_past_the_limit_end_the_pass_with_file_and_line(void **state)
{
    uint32_t rows[ROWS_MAX], n;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b);
    add_file(&b, 20, 0);
    add_file(&b, 20, 5); /* rows 24, 29, 34, 39; empty lines behind 22 and 33 */
    b.options.bad_rows_max = 4;
    assert_int_equal(run_well(&b, rows), 36);
    b.options.bad_rows_max = 2;
    assert_int_equal(run(&b, rows, &n, NULL, &err), PS_EDATA);
    fixture_assert_says(&err, "part-1:17: column 1 (row): 'bad34' is not a number");
    fixture_assert_says(&err, "3 malformed so far, limit 2");
    b.options.bad_rows_max = 0;
    assert_int_equal(run(&b, rows, &n, NULL, &err), PS_EDATA);
    fixture_assert_says(&err, "part-1:6: ");
    fixture_assert_says(&err, "1 malformed so far, limit 0");
    assert_int_equal(n, 20);
    bench_free(&b);
}

static void a_line_over_the_limit_is_a_malformed_row(void **state)
{
    char *text = memory_alloc(2000100);
    uint32_t rows[ROWS_MAX], n;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b);
    strcpy(text, "0,0,x\n1,1,");
    memset(text + 10, 'x', 2000000);
    strcpy(text + 2000010, "\n0,2,x\n");
    fixture_write_text(&b.folder, "log", text, b.names[0]);
    b.paths[0] = b.names[0];
    b.n_files = 1;
    b.options.bad_rows_max = 1;
    assert_int_equal(run_well(&b, rows), 2);
    assert_int_equal(rows[1], 2);
    b.options.bad_rows_max = 0;
    assert_int_equal(run(&b, rows, &n, NULL, &err), PS_EDATA);
    fixture_assert_says(&err, "log:2: the line is longer than 1 MiB");
    free(text);
    bench_free(&b);
}

static void every_file_has_its_header_and_it_must_be_the_same(void **state)
{
    struct schema_text text = numbered;
    uint32_t rows[ROWS_MAX], n;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b);
    schema_free(b.schema);
    text.columns = "";
    text.header = true;
    b.schema = fixture_schema(&text, "y,row,token");
    b.options.schema = b.schema;
    fixture_write_text(&b.folder, "a", "y,row,token\n0,0,x\n1,1,x\n", b.names[0]);
    fixture_write_text(&b.folder, "b", "", b.names[1]);
    fixture_write_text(&b.folder, "c", "\r\ny,row,token\r\n0,2,x\r\n", b.names[2]);
    fixture_write_text(&b.folder, "d", "y,token,row\n1,x,3\n", b.names[3]);
    for (int i = 0; i < 4; i++)
        b.paths[i] = b.names[i];
    b.n_files = 3;
    assert_int_equal(run_well(&b, rows), 3);
    b.options.range.first_row = 2;
    assert_int_equal(run_well(&b, rows), 1);
    assert_int_equal(rows[0], 2);
    b.n_files = 4;
    assert_int_equal(run(&b, rows, &n, NULL, &err), PS_EDATA);
    fixture_assert_says(&err, "/d: header: column 1 is called 'token', 'row' expected");
    bench_free(&b);
}

static void unlabelled_files_have_no_label_column(void **state)
{
    uint32_t rows[ROWS_MAX];
    struct bench b;

    (void)state;
    bench_new(&b);
    fixture_write_text(&b.folder, "a", "0,x\n1,x\n2,y\n", b.names[0]);
    b.paths[0] = b.names[0];
    b.n_files = 1;
    b.options.labelled = false;
    assert_int_equal(run_well(&b, rows), 3);
    bench_free(&b);
}

static void a_file_that_ends_too_early_ends_the_pass_behind_its_rows(void **state)
{
    uint32_t rows[ROWS_MAX], n;
    char text[60000] = "";
    struct bench b;
    struct err err;
    size_t at = 0, n_bytes;
    void *packed;

    (void)state;
    bench_new(&b);
    for (unsigned i = 0; i < 3000; i++)
        at += (size_t)sprintf(text + at, "%u,%u,%08x\n", i & 1, i, (unsigned)hash_mix(i));
    packed = fixture_zstd(text, at, &n_bytes);
    fixture_write(&b.folder, "log.zst", packed, n_bytes - 1, b.names[0]);
    b.paths[0] = b.names[0];
    b.n_files = 1;
    assert_int_equal(run(&b, rows, &n, NULL, &err), PS_EDATA);
    fixture_assert_says(&err, "log.zst: the packed data ends too early");
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(rows[i], i);
    free(packed);
    bench_free(&b);
}

static void rows_bad_rows_and_bytes_are_counted(void **state)
{
    struct data_loader_counts counts;
    struct batch batch;
    struct loader_pass *p;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b);
    fixture_write_text(&b.folder, "a", "1,1,x\nbad\n\n0,2,x\n", b.names[0]);
    fixture_write_text(&b.folder, "b", "1,3,x", b.names[1]);
    b.paths[0] = b.names[0];
    b.paths[1] = b.names[1];
    b.options.n_paths = 2;
    b.options.bad_rows_max = 1;
    b.options.batch = 10;
    assert_int_equal(batch_init(&batch, 10, 1, 1), 0);
    assert_int_equal(loader_pass_new(&b.options, NULL, &p, &err), 0);
    assert_int_equal(loader_pass_fill(p, &batch, &err), 0);
    loader_pass_counts(p, &counts);
    assert_int_equal(counts.rows, 3);
    assert_int_equal(counts.bad_rows, 1);
    assert_non_null(strstr(counts.bad_row, "a:2: "));
    assert_int_equal(counts.bytes, 22);
    loader_pass_free(p);
    batch_deinit(&batch);
    bench_free(&b);
}

static void a_pass_that_is_stopped_gives_no_more(void **state)
{
    atomic_bool stop = false;
    struct batch batch;
    struct loader_pass *p;
    struct bench b;
    struct err err;

    (void)state;
    bench_new(&b);
    add_file(&b, 100, 0);
    b.options.n_paths = 1;
    assert_int_equal(batch_init(&batch, 5, 1, 1), 0);
    assert_int_equal(loader_pass_new(&b.options, &stop, &p, &err), 0);
    assert_int_equal(loader_pass_fill(p, &batch, &err), 0);
    assert_int_equal(batch.n, 5);
    stop = true;
    assert_int_equal(loader_pass_fill(p, &batch, &err), 0);
    assert_int_equal(batch.n, 0);
    loader_pass_free(p);
    batch_deinit(&batch);
    bench_free(&b);
}

#ifdef PS_FAULTS
static void every_failed_allocation_ends_the_pass_with_a_status(void **state)
{
    uint32_t rows[ROWS_MAX], n;
    int status = -1;
    struct bench b;

    (void)state;
    bench_new(&b);
    add_file(&b, 30, 0);
    add_file(&b, 30, 0);
    b.options.shuffle_rows = 16;
    for (long k = 0; status != 0; k++) {
        struct err err;

        memory_fail_after(k);
        status = run(&b, rows, &n, NULL, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
    }
    assert_int_equal(n, 60);
    bench_free(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_in_file_order_over_all_files),
        cmocka_unit_test(a_range_counts_malformed_rows_but_not_empty_lines),
        cmocka_unit_test(the_shares_of_all_ranks_are_the_range_and_do_not_overlap),
        cmocka_unit_test(in_lock_step_n_workers_of_batch_b_see_one_workers_batch_of_n_times_b),
        cmocka_unit_test(files_are_distributed_whole),
        cmocka_unit_test(the_seed_alone_decides_how_rows_are_shuffled),
        cmocka_unit_test(malformed_rows_past_the_limit_end_the_pass_with_file_and_line),
        cmocka_unit_test(a_line_over_the_limit_is_a_malformed_row),
        cmocka_unit_test(every_file_has_its_header_and_it_must_be_the_same),
        cmocka_unit_test(unlabelled_files_have_no_label_column),
        cmocka_unit_test(a_file_that_ends_too_early_ends_the_pass_behind_its_rows),
        cmocka_unit_test(rows_bad_rows_and_bytes_are_counted),
        cmocka_unit_test(a_pass_that_is_stopped_gives_no_more),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_ends_the_pass_with_a_status),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
