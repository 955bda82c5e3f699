/* The files of tests/data/parquet: the same rows as text and as Parquet; and passes over them that must agree. */
#ifndef TESTS_UNIT_DATA_PARQUET_BENCH_H
#define TESTS_UNIT_DATA_PARQUET_BENCH_H

#include "tests/unit/data/fixture.h"
#include "worker/data/loader_pass.h"

#define PARQUET_BENCH_ROWS 160u
#define PARQUET_BENCH_FOLDER "tests/data/parquet/"

/* Every column but for those of types that cannot be read. */
static const struct schema_text parquet_bench_text = {
    .delimiter = "\\t",
    .header = true,
    .label = "label",
    .numeric = "count,total,rate,price,flag",
    .categorical = "city,token,item,big,small,weight,history,tags",
    .bucketise = "spread",
    .inner_separator = "|",
};

/* What a pass over a file adds up to, in bits. */
struct parquet_bench_sum {
    uint64_t hash, rows, bad_rows, batches;
    char bad_row[DATA_LOADER_BAD_ROW_BYTES];
};

/* A whole file; the caller's to free. */
uint8_t *parquet_bench_file(const char *name, size_t *ret_n_bytes);

/* A schema of the first of these files: rows.tsv.gz, or one that is Parquet. */
struct schema *parquet_bench_schema(const struct schema_text *text, const char *path);

/* 0, or what ended the pass, with *err. Options: paths and schema are set here. */
int parquet_bench_pass(const struct schema *schema, const char *path,
                       const struct data_loader_options *options, struct parquet_bench_sum *ret,
                       struct err *err);

#endif
