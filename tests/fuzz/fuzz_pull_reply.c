/*
 * A shard's answer to a worker's pull: u8 codec | u8 storage | values. As plain rows they are what the codec
 * makes of them; as rows with their state they are held by a replica from then on, and read from it.
 */
#include "tests/unit/core/fixture.h"

#include "tests/fuzz/harness.h"
#include "worker/cache/replica.h"
#include "worker/client/push_encoder.h"

enum { DIM = 5, N_KEYS = 11 };

static const uint64_t keys[N_KEYS] = { 0, 1, 2, 3, 9, 70, 71, 500, 501, 1u << 20, UINT64_MAX };

static struct table_spec spec_of(enum table_spec_storage storage)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD);

    spec.storage = storage;
    return spec;
}

static void must(int status)
{
    assert(status == 0);
}

/* --- rows --- */

static void check_rows(const float *got, enum codec_id id, const uint8_t *values)
{
    const struct codec *codec = codec_by_id(id);
    size_t row_bytes = codec->row_bytes(DIM, 0);
    float want[DIM];

    for (uint32_t i = 0; i < N_KEYS; i++) {
        must(codec->decode(values + i * row_bytes, DIM, 0, want));
        assert(memcmp(want, got + (size_t)i * DIM, sizeof want) == 0);
    }
}

static void pull_rows(const struct table_spec *spec, enum codec_id codec, const uint8_t *values,
                      size_t n_bytes)
{
    float dst[N_KEYS * DIM];
    struct ps_pull_section section = {
        .codec = codec, .n_keys = N_KEYS, .keys = keys, .dst = dst
    };
    struct push_encoder *e = push_encoder_new(1);
    struct request *request = request_new(1);
    struct partition partition;
    int status;

    assert(request);
    must(push_encoder_add_table(e, 0, spec));
    partition_init(&partition, 1);
    must(push_encoder_pull(e, &section, 1, &partition, &request));
    status = push_encoder_pulled(e, &section, 1, &partition, 0, &values, &n_bytes);
    assert(status == 0 || status == PS_ECOUNT || status == PS_ECODEC);
    if (status == 0)
        check_rows(dst, codec, values);
    partition_deinit(&partition);
    request_free(request);
    push_encoder_free(e);
}

/* --- rows with their state --- */

static void take_rows(const struct table_spec *spec, const uint8_t *values, size_t n_bytes)
{
    const struct replica_options options = {
        .n_shards = 1, .mode = TABLE_SPEC_MODE_ASYNC, .max_bytes = 1 << 20, .n_turns = 2
    };
    float dst[N_KEYS * DIM];
    const struct ps_pull_section section = { .n_keys = N_KEYS, .keys = keys, .dst = dst };
    struct replica *r = replica_new(&options);
    uint32_t numbers[N_KEYS];
    uint64_t missing[N_KEYS];
    struct err err = { 0 };
    uint8_t flags;
    int status;

    for (uint32_t i = 0; i < N_KEYS; i++)
        numbers[i] = i;
    enter_shard();
    must(replica_add_table(r, 0, spec, &err));
    assert(replica_begin_interval(r)); /* no device has its rows */
    status = replica_receive(r, &section, replica_n_pushes(r, 0, 0), 0, numbers, N_KEYS, values,
                             n_bytes, &flags);
    assert(status == 0 || status == PS_ECOUNT || status == PS_ESEQ);
    if (status == 0) {
        assert(replica_missing(r, 0, keys, N_KEYS, missing) == 0);
        assert(replica_n_rows(r) == N_KEYS);
        must(replica_read(r, &section, 1, &err));
    }
    replica_free(r);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    enum codec_id codec = (enum codec_id)(harness_number(&in, 1) % CODEC_ONEBIT);
    struct table_spec spec =
        spec_of((enum table_spec_storage)(harness_number(&in, 1) % TABLE_SPEC_STORAGE_END));
    size_t n;
    uint8_t *values = harness_take(&in, SIZE_MAX, &n);

    pull_rows(&spec, codec, values, n);
    take_rows(&spec, values, n);
    free(values);
}

/* --- seeds: what a shard says, of which a half of the keys have rows --- */

bool harness_seed(uint32_t i, struct bytes *out)
{
    enum codec_id codec = (enum codec_id)(i / 2 % CODEC_ONEBIT);
    struct table_spec spec = spec_of((enum table_spec_storage)(i % TABLE_SPEC_STORAGE_END));
    const float values[N_KEYS * DIM] = { 1, -2, 3, 0.5f };
    uint64_t min_clock, version;
    struct shard *s;
    struct pull *pull;
    struct err err;
    size_t n_bytes;
    uint8_t *dst;

    if (i >= 12)
        return false;
    s = make_shard(0, 1, 0);
    (void)make_table(s, &spec);
    if (i % 4) {
        struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
        struct push *push = next_push(w, 0);

        (void)add_gradient(push, 0, DIM, keys, N_KEYS / (i % 4), values);
        (void)must_push(s, w, push);
    }
    pull = make_pull(0, 0, keys, N_KEYS);
    pull->sections[0].state = i % 2;
    pull->sections[0].codec = i % 2 ? CODEC_FP32 : codec;
    enter_shard();
    must(shard_pull_plan(s, pull, SIZE_MAX, &n_bytes, &err));
    dst = malloc(n_bytes);
    assert(dst);
    if (i % 2) {
        struct shard_pull_op run;

        shard_pull_begin(s, NULL, pull, dst, &run);
        while (!run.done)
            must(shard_pull_more(s, &run, &err));
        n_bytes = run.value_bytes[0];
    } else {
        must(shard_pull(s, NULL, pull, dst, &min_clock, &version, &err));
    }
    harness_put_number(out, codec, 1);
    harness_put_number(out, i % TABLE_SPEC_STORAGE_END, 1);
    harness_put(out, dst, n_bytes);
    free(dst);
    free_pull(pull);
    shard_free(s);
    return true;
}
