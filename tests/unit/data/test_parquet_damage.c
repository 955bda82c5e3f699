/*
 * Parquet files that are damaged, and memory that runs out: a sentence or rows, never a crash, nothing read behind a
 * buffer, nothing kept.
 */
#include "tests/unit/data/parquet_bench.h"

#include <errno.h>
#include <fcntl.h>

#include "tests/support/share.h"
#include "worker/data/parquet_file.h"

static const struct data_loader_options all_rows = { .labelled = true,
                                                     .by_rows = true,
                                                     .bad_rows_max = 1000 };

struct patient {
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct schema *schema;
    uint8_t *bytes; /* owned; as they were */
    size_t n_bytes;
    uint64_t n_read, n_refused;
};

static void patient_new(struct patient *p, const char *name)
{
    struct schema_text text = parquet_bench_text;

    *p = (struct patient){ 0 };
    if (strncmp(name, "hyparquet", 9) == 0)
        text.categorical = "city,token,item,small,weight";
    text.columns = "label,count,total,rate,price,flag,city,token,item,big,small,weight,spread,"
                   "history,tags";
    text.header = false;
    fixture_folder_new(&p->folder);
    p->bytes = parquet_bench_file(name, &p->n_bytes);
    fixture_write(&p->folder, "damaged", p->bytes, p->n_bytes, p->path);
    p->schema = parquet_bench_schema(&text, p->path);
}

static void patient_free(struct patient *p)
{
    schema_free(p->schema);
    fixture_folder_free(&p->folder);
    free(p->bytes);
}

static void patient_read(struct patient *p)
{
    struct parquet_bench_sum sum;
    struct schema *own = NULL;
    struct data_loader_options options = all_rows;
    struct err err;
    int status;

    options.n_ranks = 1 + (uint32_t)(p->n_read % 3);
    status = parquet_bench_pass(p->schema, p->path, &options, &sum, &err);
    if (status && (status != PS_EDATA || !err.text[0]))
        fail_msg("status %d, '%s'", status, err.text);
    p->n_read += status == 0;
    p->n_refused += status != 0;
    status = schema_open(
        &(struct schema_text){ .delimiter = ",", .label = "label", .categorical = "city" },
        NULL, p->path, &own, &err);
    if (status)
        assert_true((status == PS_EDATA || status == PS_ESETTING) && err.text[0]);
    schema_free(own);
}

static void every_byte_of(const char *name, size_t every)
{
    const size_t step = every * (size_t)share_step();
    const uint64_t seed = fixture_seed(name);
    uint64_t n = 0;
    struct patient p;
    int fd;

    patient_new(&p, name);
    fd = open(p.path, O_RDWR);
    assert_true(fd >= 0);
    for (size_t at = 4 + every * (size_t)share_first(); at < p.n_bytes; at += step) {
        uint8_t byte = (uint8_t)(p.bytes[at] ^ (1 + fixture_draw(seed, &n, 255)));

        assert_true(pwrite(fd, &byte, 1, (off_t)at) == 1);
        patient_read(&p);
        assert_true(pwrite(fd, p.bytes + at, 1, (off_t)at) == 1);
    }
    assert_true(p.n_refused > p.n_bytes / step / 20);
    close(fd);
    patient_free(&p);
}

static void any_byte_may_be_another(void **state)
{
    (void)state;
    every_byte_of("duckdb-zstd.parquet", 1);
    every_byte_of("hyparquet.parquet", 3);
    every_byte_of("duckdb-snappy.parquet", 5);
    every_byte_of("duckdb-v2.parquet", 5);
    every_byte_of("arrow-v1.parquet", 5);
    every_byte_of("arrow-delta.parquet", 3);
    every_byte_of("arrow-plain.parquet", 9);
}

static void a_file_may_end_anywhere(void **state)
{
    struct patient p;

    (void)state;
    patient_new(&p, "arrow-v2.parquet");
    for (size_t n = p.n_bytes; n-- > 0; n -= n > 80 ? 13 : 0) {
        p.n_refused = 0;
        fixture_write(&p.folder, "damaged", p.bytes, n, p.path);
        /* Of fewer bytes nobody can say what they were. */
        if (n >= 64) {
            assert_true(parquet_file_is_one(p.path));
            patient_read(&p);
            assert_int_equal(p.n_refused, 1);
        }
    }
    patient_free(&p);
}

/* The footer stays, and says that there is more. */
static void a_hole_in_the_pages_is_found(void **state)
{
    static const size_t lengths[] = { 1, 8, 64, 700 };
    struct patient p;

    (void)state;
    patient_new(&p, "duckdb-gzip.parquet");
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        for (size_t at = 4; at + lengths[i] < p.n_bytes; at += 97) {
            uint8_t *bytes = memory_alloc(p.n_bytes);

            memcpy(bytes, p.bytes, p.n_bytes);
            memset(bytes + at, i % 2 ? 0xff : 0, lengths[i]);
            fixture_write(&p.folder, "damaged", bytes, p.n_bytes, p.path);
            patient_read(&p);
            free(bytes);
        }
    assert_true(p.n_refused > 10);
    patient_free(&p);
}

#ifdef PS_FAULTS
static void memory_may_run_out_anywhere(const char *name, const struct schema_text *text)
{
    struct parquet_bench_sum want, got;
    struct schema *schema = NULL;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    int status = -ENOMEM;
    long k;

    snprintf(path, sizeof path, PARQUET_BENCH_FOLDER "%s", name);
    schema = parquet_bench_schema(text, path);
    assert_int_equal(parquet_bench_pass(schema, path, &all_rows, &want, &err), 0);
    schema_free(schema);
    for (k = share_first(); status; k += share_step()) {
        assert_true(k < 10000);
        schema = NULL;
        memory_fail_after(k);
        status = schema_open(text, NULL, path, &schema, &err);
        if (!status)
            status = parquet_bench_pass(schema, path, &all_rows, &got, &err);
        memory_fail_after(-1);
        schema_free(schema);
        if (status)
            assert_int_equal(status, -ENOMEM);
    }
    assert_true(k > 20);
    assert_int_equal(want.hash, got.hash);
    assert_int_equal(want.bad_rows, got.bad_rows);
}

static void without_memory_a_pass_ends_with_a_status(void **state)
{
    struct schema_text text = parquet_bench_text;

    (void)state;
    memory_may_run_out_anywhere("duckdb-snappy.parquet", &text);
    memory_may_run_out_anywhere("arrow-v1.parquet", &text);
    memory_may_run_out_anywhere("arrow-delta.parquet", &text);
    text.numeric = "token,count"; /* most rows are malformed */
    text.categorical = "city,history";
    memory_may_run_out_anywhere("arrow-v2.parquet", &text);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_byte_may_be_another),
        cmocka_unit_test(a_file_may_end_anywhere),
        cmocka_unit_test(a_hole_in_the_pages_is_found),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_a_pass_ends_with_a_status),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
