/*
 * The body of a request for scores: u8 schema, u8 samples of a batch | JSON.
 *
 * A body that is refused has a sentence, and leaves whole samples; what is accepted is read to its end, in batches of
 * any size to the same samples.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/harness.h"
#include "worker/serve/score_request.h"

#define SAMPLES_MAX 64u

static const struct schema_text schemas[] = {
    { .preset = "criteo" },
    { .delimiter = ",",
      .columns = "y,a,b,c,d",
      .label = "y",
      .numeric = "a",
      .bucketise = "b",
      .categorical = "c,d",
      .missing = "?",
      .inner_separator = "|" },
    { .delimiter = ",",
      .columns = "a,b,c",
      .numeric = "a",
      .categorical = "b,c",
      .missing_as = SCHEMA_MISSING_SKIP,
      .numeric_as = SCHEMA_RAW },
};

static void must(int status)
{
    assert(status == 0);
}

static void check_samples(const struct batch *b)
{
    uint32_t n_bags = b->n * b->n_fields;

    for (uint32_t i = 0; i < n_bags; i++)
        assert(b->starts[i] <= b->starts[i + 1]);
    assert(!n_bags || b->starts[n_bags] == b->n_keys);
}

/* What all samples are, whatever the batches. */
struct samples {
    uint64_t digest;
    uint32_t n;
};

static void add_samples(struct samples *s, const struct batch *b)
{
    check_samples(b);
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t *starts = b->starts + (size_t)i * b->n_fields;

        harness_digest(&s->digest, b->numeric + (size_t)i * b->n_numeric,
                       b->n_numeric * sizeof *b->numeric);
        for (uint32_t f = 0; f < b->n_fields; f++)
            harness_digest(&s->digest, b->keys + starts[f],
                           (starts[f + 1] - starts[f]) * sizeof *b->keys);
    }
    s->n += b->n;
}

static int read_all(const struct schema *schema, const uint8_t *json, size_t n_bytes,
                    uint32_t n_max, struct samples *ret)
{
    struct score_columns *columns;
    struct score_request request = { 0 };
    struct err err = { 0 };
    char *body = malloc(n_bytes ? n_bytes : 1);
    struct batch batch;
    int status;

    *ret = (struct samples){ 0 };
    memcpy(body, json, n_bytes);
    must(score_columns_new(schema, &columns, &err));
    must(batch_init(&batch, n_max, schema_n_numeric(schema), schema_n_fields(schema)));
    status = score_request_open(&request, columns, body, n_bytes, &err);
    while (!status && request.n_read < request.n_rows) {
        batch_clear(&batch);
        status = score_request_read(&request, &batch, &err);
        if (!status)
            add_samples(ret, &batch);
        assert(status || batch.n == n_max || request.n_read == request.n_rows);
    }
    assert(!status || (status == PS_EDATA && err.text[0]));
    assert(status || ret->n == request.n_rows);
    score_request_close(&request);
    batch_deinit(&batch);
    score_columns_free(columns);
    free(body);
    return status;
}

/* Each is made once: its table of logarithms takes longer than a thousand inputs. */
static const struct schema *schema_of(uint32_t i)
{
    static struct schema *made[COUNT_OF(schemas)];
    struct err err;

    if (!made[i])
        must(schema_new(&schemas[i], NULL, &made[i], &err));
    return made[i];
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    const struct schema *schema =
        schema_of((uint32_t)harness_number(&in, 1) % COUNT_OF(schemas));
    const uint32_t n_max = 1 + (uint32_t)harness_number(&in, 1) % SAMPLES_MAX;
    struct samples some, others;
    int status;

    status = read_all(schema, in.at, harness_left(&in), n_max, &some);
    assert(read_all(schema, in.at, harness_left(&in), SAMPLES_MAX, &others) == status);
    assert(status || (some.n == others.n && some.digest == others.digest));
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const struct {
        uint8_t schema;
        const char *json;
    } seeds[] = {
        { 0, "{\"rows\":[{\"I1\":5,\"C1\":\"68fd1e64\",\"C26\":null},{\"I13\":\"-1\"}]}" },
        { 1, "{\"rows\":[[1.5e3,\"a|b\",[\"x\",7,null],\"?\"],[null,\"\",[],44]]}" },
        { 1, "{\"columns\":[\"b\",\"c\"],\"rows\":[[12345678901234567890,"
             "\"\\u00e9\\ud83d\\ude00\\n\"],"
             "{\"a\":-0.5}]}" },
        { 2, " { \"rows\" : [ { \"a\" : \"3\" , \"b\" : [ ] } ] , \"columns\" : [ ] } " },
        { 2, "{\"rows\":[{\"a\":true}]}" },
    };

    if (i >= COUNT_OF(seeds))
        return false;
    harness_put_number(out, seeds[i].schema, 1);
    harness_put_number(out, i, 1);
    harness_put_text(out, seeds[i].json);
    return true;
}
