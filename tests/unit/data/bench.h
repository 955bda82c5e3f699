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

void bench_new(struct bench *b, const struct schema_text *text, const char *first_line);
void bench_free(struct bench *b);

/* The line is copied to a block of just its size, so that ASan sees a read past it. */
int bench_parse_bytes(struct bench *b, const char *bytes, size_t len);

static inline int bench_parse(struct bench *b, const char *line)
{
    return bench_parse_bytes(b, line, strlen(line));
}

void bench_parse_well(struct bench *b, const char *line);

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
