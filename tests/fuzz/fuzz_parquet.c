/*
 * A Parquet file. Rows come to their end or the file is refused with a sentence. Of columns that are no LISTs, rows read
 * one here and one there are the same as when all are read; so they are with a damaged file, as long as it is read.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "tests/fuzz/text.h"
#include "worker/data/parquet_file.h"
#include "worker/data/parquet_rows.h"

#define ROWS_MAX 3000u /* a few bytes may stand for a billion rows */

struct digests {
    uint64_t rows[ROWS_MAX];
    uint32_t n;
    bool whole; /* no error */
};

enum use { FLAT_AS_FIELDS, FLAT_AS_NUMBERS, ALL };

/* The columns that can be read, by position. */
static bool make_plan(const struct parquet_file *file, enum use use, struct line_parser_plan *p)
{
    *p = (struct line_parser_plan){ .n_columns = parquet_file_n_columns(file),
                                    .delimiter = "\t",
                                    .missing = use == ALL ? "x" : "",
                                    .missing_has_key = use != ALL,
                                    .inner_separator = use == ALL ? "|" : "",
                                    .numeric_as = LINE_PARSER_RAW };
    for (uint32_t i = 0; i < p->n_columns && i < LINE_PARSER_COLUMNS_MAX; i++) {
        const struct parquet_file_column *c = parquet_file_column(file, i);

        if (c->refused[0] || (c->rep_max && use != ALL))
            continue;
        if (use == FLAT_AS_NUMBERS)
            p->numeric_columns[p->n_numeric++] = (uint16_t)i;
        else
            p->fields[p->n_fields++] = (struct line_parser_field){
                .column = (uint16_t)i, .is_bucket = use == ALL && !c->rep_max && i % 5 == 4
            };
    }
    return p->n_numeric + p->n_fields > 0;
}

static uint64_t digest_of(const struct batch *b, int status, const struct err *why)
{
    uint64_t digest = 0;

    if (status == PS_EDATA) {
        assert(why->text[0]);
        harness_digest(&digest, why->text, strlen(why->text));
        return digest;
    }
    assert(status == 0 && b->n == 1);
    harness_digest(&digest, b->numeric, b->n_numeric * sizeof *b->numeric);
    harness_digest(&digest, b->starts, (b->n_fields + (size_t)1) * sizeof *b->starts);
    harness_digest(&digest, b->keys, b->n_keys * sizeof *b->keys);
    return digest;
}

/* Every step-th row, n_block of them at once. */
static void read_rows(const char *path, const struct line_parser_plan *p, uint32_t step,
                      uint32_t n_block, struct digests *ret)
{
    struct parquet_rows *rows;
    struct batch b;
    struct err err = { 0 }, why = { 0 };
    int status = parquet_rows_open(path, p, n_block, &rows, &err);

    ret->n = 0;
    assert(!status == !err.text[0]);
    ret->whole = !status;
    if (status)
        return;
    status = batch_init(&b, 1, p->n_numeric, p->n_fields);
    assert(status == 0);
    while (!status && ret->n < ROWS_MAX && parquet_rows_next(rows)) {
        ret->rows[ret->n] = 0;
        if (ret->n % step == 0 && (status = parquet_rows_fetch(rows, &err)) == 0) {
            batch_clear(&b);
            ret->rows[ret->n] = digest_of(&b, parquet_rows_add(rows, &b, &why), &why);
        }
        ret->n += status == 0;
    }
    assert(!status == !err.text[0]);
    ret->whole = !status;
    batch_deinit(&b);
    parquet_rows_close(rows);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct digests *all = memory_alloc(2 * sizeof *all), *some = all + 1;
    struct line_parser_plan *plan = memory_alloc(sizeof *plan);
    struct parquet_file *file = NULL;
    struct err err = { 0 };
    struct text text;
    int status;

    text_new(&text, bytes, n_bytes);
    status = parquet_file_open(text.path, &file, &err);
    assert(!status == !err.text[0]);
    if (!status && make_plan(file, FLAT_AS_FIELDS, plan)) {
        read_rows(text.path, plan, 1, 0, all);
        read_rows(text.path, plan, 37, 5, some);
        for (uint32_t i = 0; all->whole && some->whole && i < all->n; i += 37)
            assert(all->rows[i] == some->rows[i]);
    }
    if (!status && make_plan(file, FLAT_AS_NUMBERS, plan))
        read_rows(text.path, plan, 2, 3, some);
    if (!status && make_plan(file, ALL, plan)) {
        read_rows(text.path, plan, 1, 7, all);
        read_rows(text.path, plan, 23, 0, some);
    }
    parquet_file_close(file);
    text_free(&text);
    free(plan);
    free(all);
}

/* There is no writer of ours: the files of three others, that tests read. */
bool harness_seed(uint32_t i, struct bytes *out)
{
    static const char *const names[] = { "duckdb-zstd", "duckdb-v2", "arrow-v2",
                                         "arrow-delta", "hyparquet", "hyparquet-half" };
    uint8_t bytes[32768];
    char path[64];
    size_t n;
    FILE *f;

    if (i >= COUNT_OF(names))
        return false;
    snprintf(path, sizeof path, "tests/data/parquet/%s.parquet", names[i]);
    f = fopen(path, "r");
    assert(f);
    n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    harness_put(out, bytes, n);
    return true;
}
