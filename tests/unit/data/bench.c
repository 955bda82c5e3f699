#include "tests/unit/data/bench.h"

void bench_new(struct bench *b, const struct schema_text *text, const char *first_line)
{
    *b = (struct bench){ .schema = fixture_schema(text, first_line) };
    assert_int_equal(
        batch_init(&b->batch, 64, schema_n_numeric(b->schema), schema_n_fields(b->schema)), 0);
    batch_clear(&b->batch);
}

void bench_free(struct bench *b)
{
    batch_deinit(&b->batch);
    schema_free(b->schema);
}

int bench_parse_bytes(struct bench *b, const char *bytes, size_t len)
{
    char *line = malloc(len ? len : 1);
    int status;

    assert_non_null(line);
    memcpy(line, bytes, len);
    status = line_parser_simd_parse(schema_plan(b->schema), line, len, &b->batch, &b->why);
    free(line);
    return status;
}

void bench_parse_well(struct bench *b, const char *line)
{
    if (bench_parse(b, line))
        fail_msg("'%s': %s", line, b->why.text);
}
