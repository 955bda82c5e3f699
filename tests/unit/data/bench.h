/* A schema, a batch that fits it, and lines to parse: what the tests of row.h share. */
#ifndef TESTS_UNIT_DATA_BENCH_H
#define TESTS_UNIT_DATA_BENCH_H

#include <xxhash.h>

#include "tests/unit/data/fixture.h"
#include "worker/data/line_parser_simd.h"

struct bench {
    struct schema *schema;
    struct batch batch;
    struct err why;
};

static inline void bench_new(struct bench *b, const struct schema_text *text,
                             const char *first_line)
{
    *b = (struct bench){ .schema = fixture_schema(text, first_line) };
    assert_int_equal(
        batch_init(&b->batch, 64, schema_n_numeric(b->schema), schema_n_fields(b->schema)), 0);
    batch_clear(&b->batch);
}

static inline void bench_free(struct bench *b)
{
    batch_deinit(&b->batch);
    schema_free(b->schema);
}

/* The line is copied to a block of just its size, so that ASan sees a read past it. */
static inline int bench_parse_bytes(struct bench *b, const char *bytes, size_t len)
{
    char *line = malloc(len ? len : 1);
    int status;

    assert_non_null(line);
    memcpy(line, bytes, len);
    status = line_parser_simd_parse(schema_plan(b->schema), line, len, &b->batch, &b->why);
    free(line);
    return status;
}

static inline int bench_parse(struct bench *b, const char *line)
{
    return bench_parse_bytes(b, line, strlen(line));
}

static inline void bench_parse_well(struct bench *b, const char *line)
{
    if (bench_parse(b, line))
        fail_msg("'%s': %s", line, b->why.text);
}

static inline uint64_t bench_key(const char *token, uint32_t field)
{
    return XXH3_64bits_withSeed(token, strlen(token), field);
}

static const struct schema_text bench_small = { .delimiter = ",",
                                                .columns = "y,a,b,c,d",
                                                .label = "y",
                                                .numeric = "a,b",
                                                .categorical = "c,d" };

#endif
