#include "tests/unit/data/parquet_bench.h"

uint8_t *parquet_bench_file(const char *name, size_t *ret_n_bytes)
{
    char path[FIXTURE_PATH_MAX];
    uint8_t *bytes = memory_alloc(1 << 20);
    FILE *file;

    snprintf(path, sizeof path, PARQUET_BENCH_FOLDER "%s", name);
    file = fopen(path, "r");
    assert_non_null(file);
    *ret_n_bytes = fread(bytes, 1, 1 << 20, file);
    assert_in_range(*ret_n_bytes, 1, (1 << 20) - 1);
    fclose(file);
    return bytes;
}

struct schema *parquet_bench_schema(const struct schema_text *text, const char *path)
{
    struct schema *schema;
    struct err err;

    if (schema_open(text, NULL, path, &schema, &err))
        fail_msg("%s", err.text);
    return schema;
}

static void add(uint64_t *hash, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < n_bytes; i++)
        *hash = hash_mix2(*hash, at[i]);
}

static void add_batch(struct parquet_bench_sum *sum, const struct batch *b)
{
    add(&sum->hash, b->label, b->n * sizeof *b->label);
    add(&sum->hash, b->numeric, (size_t)b->n * b->n_numeric * sizeof *b->numeric);
    add(&sum->hash, b->starts, ((size_t)b->n * b->n_fields + 1) * sizeof *b->starts);
    add(&sum->hash, b->keys, b->n_keys * sizeof *b->keys);
    sum->rows += b->n;
    sum->batches++;
}

int parquet_bench_pass(const struct schema *schema, const char *path,
                       const struct data_loader_options *options, struct parquet_bench_sum *ret,
                       struct err *err)
{
    char *paths[1] = { (char *)(uintptr_t)path };
    struct data_loader_options own = *options;
    struct data_loader_counts counts;
    struct loader_pass *pass = NULL;
    struct batch batch = { 0 };
    int status;

    *ret = (struct parquet_bench_sum){ 0 };
    *err = (struct err){ 0 };
    own.schema = schema;
    own.paths = paths;
    own.n_paths = 1;
    own.n_ranks = own.n_ranks ? own.n_ranks : 1;
    own.batch = own.batch ? own.batch : 16;
    own.queue = 1;
    status = loader_pass_new(&own, NULL, &pass, err);
    if (!status)
        status =
            batch_init(&batch, own.batch, schema_n_numeric(schema), schema_n_fields(schema));
    while (!status && (status = loader_pass_fill(pass, &batch, err)) == 0 && batch.n > 0)
        add_batch(ret, &batch);
    if (!status) {
        loader_pass_counts(pass, &counts);
        ret->bad_rows = counts.bad_rows;
        memcpy(ret->bad_row, counts.bad_row, sizeof ret->bad_row);
    }
    batch_deinit(&batch);
    loader_pass_free(pass);
    return status;
}
