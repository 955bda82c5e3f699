#include "tests/unit/core/fixture.h"

struct dice dice_of_this_run(const char *test)
{
    print_message("%s: ", test);
    return (struct dice){ .seed = hash_mix(seed_by_the_clock()) };
}

struct table_spec sparse_spec(const char *name, uint32_t dim, enum table_spec_optim optim)
{
    struct table_spec spec = { .kind = TABLE_SPEC_SPARSE,
                               .dim = dim,
                               .seed = 7,
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 0.5f,
                               .optim = optim,
                               .mode = TABLE_SPEC_MODE_JOB };

    snprintf(spec.name, sizeof spec.name, "%s", name);
    spec.params = table_spec_optim_defaults(optim);
    return spec;
}

struct table_spec dense_spec(const char *name, uint32_t dim, uint64_t n_floats,
                             enum table_spec_optim optim)
{
    struct table_spec spec = sparse_spec(name, dim, optim);

    spec.kind = TABLE_SPEC_DENSE;
    spec.n_floats = n_floats;
    return spec;
}

struct shard *make_shard(uint32_t index, uint32_t n_shards, uint64_t memory_max_bytes)
{
    enter_shard();
    return shard_new(&(struct shard_config){ .shard = index,
                                             .n_shards = n_shards,
                                             .memory_max_bytes = memory_max_bytes,
                                             .lease_ms = LEASE_MS,
                                             .join_ms = JOIN_MS,
                                             .park_ms = 1000 });
}

uint32_t make_table(struct shard *s, const struct table_spec *spec)
{
    uint32_t id = UINT32_MAX;
    struct err err = { 0 };

    enter_shard();
    if (shard_table_open(s, spec, false, &id, &err) != 0)
        fail_msg("%s", err.text);
    return id;
}

struct worker *join_at(struct shard *s, enum table_spec_mode mode, uint32_t bound,
                       uint32_t rank, uint32_t n_workers, uint64_t incarnation, uint64_t now_ms)
{
    struct worker *w = NULL;
    struct err err = { 0 };

    enter_shard();
    if (membership_join(shard_membership(s),
                        &(struct membership_join){ .job = "job",
                                                   .rank = rank,
                                                   .n_workers = n_workers,
                                                   .incarnation = incarnation,
                                                   .mode = mode,
                                                   .bound = bound,
                                                   .name = "tester" },
                        now_ms, &w, &err) != 0)
        fail_msg("%s", err.text);
    return w;
}

struct worker *join(struct shard *s, enum table_spec_mode mode, uint32_t bound, uint32_t rank,
                    uint32_t n_workers)
{
    return join_at(s, mode, bound, rank, n_workers, 1, 0);
}

/* Messages own their sections' bytes here; free_push() and free_pull() let go of them. */
static void encode_keys(struct section *section, const uint64_t *keys, uint32_t n_keys)
{
    uint8_t *bytes = malloc((size_t)n_keys * KEY_CODEC_BYTES_MAX + 1);

    assert_non_null(bytes);
    section->n_keys = n_keys;
    section->key_bytes = key_codec_encode(keys, n_keys, bytes);
    section->keys = bytes;
}

struct section *add_section(struct push *push, uint32_t table, enum section_op op,
                            enum codec_id codec_id, uint32_t dim, const uint64_t *keys,
                            uint32_t n_keys, const float *values)
{
    struct section *section = &push->sections[push->n_sections++];
    const struct codec *codec = codec_by_id(codec_id);
    uint32_t k = codec_id == CODEC_TOPK ? (dim + 1) / 2 : 0;
    size_t row_bytes = codec->row_bytes(dim, k);
    uint8_t *bytes = malloc(n_keys * row_bytes + 1);

    assert_non_null(bytes);
    *section = (struct section){ .table_id = table,
                                 .op = op,
                                 .codec = codec_id,
                                 .k = k,
                                 .values = bytes,
                                 .value_bytes = n_keys * row_bytes };
    encode_keys(section, keys, n_keys);
    for (uint32_t i = 0; i < n_keys; i++)
        codec->encode(values + (size_t)i * dim, dim, k, bytes + i * row_bytes);
    return section;
}

struct section *add_gradient(struct push *push, uint32_t table, uint32_t dim,
                             const uint64_t *keys, uint32_t n_keys, const float *values)
{
    return add_section(push, table, SECTION_GRADIENT, CODEC_FP32, dim, keys, n_keys, values);
}

struct section *add_gradient_at(struct push *push, uint32_t table, enum codec_id codec_id,
                                uint32_t dim, const uint64_t *keys, uint32_t n_keys,
                                const float *values, const float *then,
                                struct section_delay delay)
{
    struct section *section =
        add_section(push, table, SECTION_GRADIENT_AT, codec_id, dim, keys, n_keys, values);
    const uint8_t *gradients = section->values;
    const size_t gradient_bytes = codec_by_id(codec_id)->row_bytes(dim, 0),
                 then_bytes = dim * sizeof *then, row_bytes = gradient_bytes + then_bytes;
    uint8_t *bytes = malloc(n_keys * row_bytes + 1);

    assert_non_null(bytes);
    for (uint32_t i = 0; i < n_keys; i++) {
        memcpy(bytes + i * row_bytes, gradients + i * gradient_bytes, gradient_bytes);
        memcpy(bytes + i * row_bytes + gradient_bytes, then + (size_t)i * dim, then_bytes);
    }
    free((void *)(uintptr_t)gradients);
    section->values = bytes;
    section->value_bytes = n_keys * row_bytes;
    section->steps = section_delay_steps(delay);
    return section;
}

struct section *add_assign(struct push *push, uint32_t table, uint32_t dim,
                           const uint64_t *keys, uint32_t n_keys, const float *values)
{
    return add_section(push, table, SECTION_ASSIGN, CODEC_FP32, dim, keys, n_keys, values);
}

void free_push(struct push *push)
{
    for (uint32_t i = 0; i < push->n_sections; i++) {
        free((void *)(uintptr_t)push->sections[i].keys);
        free((void *)(uintptr_t)push->sections[i].values);
    }
    free(push);
}

struct push *next_push(const struct worker *w, uint64_t clock)
{
    struct push *push = memory_alloc(sizeof *push);

    push->seq = w->last_seq + 1;
    push->clock = clock;
    push->n_samples = 1;
    push->tick = true;
    return push;
}

struct pull *make_pull(uint64_t clock, uint32_t table, const uint64_t *keys, uint32_t n_keys)
{
    struct pull *pull = memory_alloc(sizeof *pull);

    pull->clock = clock;
    pull->n_sections = 1;
    pull->sections[0] = (struct section){ .table_id = table, .codec = CODEC_FP32 };
    encode_keys(&pull->sections[0], keys, n_keys);
    return pull;
}

void free_pull(struct pull *pull)
{
    for (uint32_t i = 0; i < pull->n_sections; i++)
        free((void *)(uintptr_t)pull->sections[i].keys);
    free(pull);
}

struct shard_push_result must_push(struct shard *s, struct worker *w, struct push *push)
{
    struct shard_push_result result;

    enter_shard();
    if (shard_push(s, w, push, 0, &result) != 0 || result.status != 0)
        fail_msg("refused: %s", result.text);
    free_push(push);
    return result;
}

struct shard_push_result try_push(struct shard *s, struct worker *w, struct push *push)
{
    struct shard_push_result result;
    int status;

    enter_shard();
    status = shard_push(s, w, push, 0, &result);
    assert_true(status == 0 || status == result.status);
    assert_true(!result.status == !result.text[0]);
    free_push(push);
    return result;
}

bool ready(struct shard *s, const struct worker *w, uint64_t clock, uint32_t table)
{
    static const uint64_t key = 1;
    struct pull *pull = make_pull(clock, table, &key, 1);
    bool answer;

    enter_shard();
    answer = shard_pull_ready(s, w, pull);
    free_pull(pull);
    return answer;
}

void read_weights(struct shard *s, uint32_t table, const uint64_t *keys, uint32_t n_keys,
                  float *dst)
{
    struct pull *pull = make_pull(0, table, keys, n_keys);
    uint64_t min_clock, version;
    struct err err = { 0 };
    size_t n_bytes;

    enter_shard();
    if (shard_pull_plan(s, pull, SIZE_MAX, &n_bytes, &err) != 0 ||
        shard_pull(s, NULL, pull, (uint8_t *)dst, &min_clock, &version, &err) != 0)
        fail_msg("pull refused: %s", err.text);
    free_pull(pull);
}

struct table_spec unit_spec(void)
{
    struct table_spec spec = sparse_spec("emb", UNIT_DIM, TABLE_SPEC_SGD);

    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = 1;
    return spec;
}

struct shard *unit_shard(void)
{
    struct table_spec spec = unit_spec();
    struct shard *s = make_shard(0, 1, 0);

    make_table(s, &spec);
    return s;
}

struct push *unit_push(const struct worker *w, uint64_t clock, uint32_t n_samples, float g)
{
    static const uint64_t key = 1;
    struct push *push = next_push(w, clock);
    const float row[UNIT_DIM] = { g, g, g, g, g };

    push->n_samples = n_samples;
    add_gradient(push, 0, UNIT_DIM, &key, 1, row);
    return push;
}

float unit_weight(struct shard *s, uint64_t key)
{
    float row[UNIT_DIM];

    read_weights(s, 0, &key, 1, row);
    return row[0];
}

const struct row *find_row(struct shard *s, uint32_t table, uint64_t key)
{
    struct row *row;

    enter_shard();
    table_find_batch(shard_table(s, table)->rows, &key, 1, &row);
    return row;
}

void assert_floats_equal(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("float %zu is %.9g; expected %.9g, bit for bit", i, (double)got[i],
                     (double)want[i]);
}
