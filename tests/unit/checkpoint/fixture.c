#include "tests/unit/checkpoint/fixture.h"
#include "server/core/restore.h"

static const struct table_spec specs[] = {
    { .name = "emb",
      .kind = TABLE_SPEC_SPARSE,
      .dim = 5,
      .seed = 42,
      .init = TABLE_SPEC_INIT_UNIFORM,
      .init_scale = 0.25f,
      .optim = TABLE_SPEC_ADAM,
      .clip_norm = 2,
      .mode = TABLE_SPEC_MODE_SSP,
      .bound = 3,
      .schedule = { .warmup_clocks = 7,
                    .decay = TABLE_SPEC_DECAY_EXP,
                    .decay_start = 5,
                    .decay_clocks = 100,
                    .decay_rate = 0.5f,
                    .decay_floor = 0.125f } },
    { .name = "top.weight",
      .kind = TABLE_SPEC_DENSE,
      .dim = 4,
      .n_floats = 30,
      .init = TABLE_SPEC_INIT_ZERO,
      .optim = TABLE_SPEC_ADAGRAD,
      .mode = TABLE_SPEC_MODE_JOB },
    { .name = "half",
      .kind = TABLE_SPEC_SPARSE,
      .dim = 3, /* 6 bytes of weights, 2 of padding */
      .row_decay = 0.25f,
      .seed = 43,
      .init = TABLE_SPEC_INIT_NORMAL,
      .init_scale = 0.5f,
      .optim = TABLE_SPEC_ROWWISE_ADAGRAD,
      .storage = TABLE_SPEC_BF16,
      .limits = { .admit_touches = 3,
                  .rare_touches = 4,
                  .admit_clocks = 1000,
                  .idle_clocks = 2000,
                  .rare_clocks = 3000,
                  .ttl_s = 86400,
                  .victims = TABLE_SPEC_VICTIMS_OLDEST,
                  .max_bytes = UINT64_C(1) << 40 } },
};

struct table_spec fixture_spec(uint32_t i)
{
    struct table_spec spec = specs[i];

    spec.params = table_spec_optim_defaults(spec.optim);
    spec.params.weight_decay = 0.5f;
    return spec;
}

struct shard *fixture_shard(uint32_t index, uint32_t n_shards)
{
    return shard_new(&(struct shard_config){ .shard = index,
                                             .n_shards = n_shards,
                                             .lease_ms = 1000,
                                             .join_ms = 1000,
                                             .park_ms = 1000 });
}

static uint64_t fixture_n_rows(uint32_t t, uint32_t n_sparse)
{
    struct table_spec spec = fixture_spec(t);

    return t == 0 ? n_sparse : t == 1 ? table_spec_n_blocks(&spec) : n_sparse / 100;
}

void fixture_fill(struct shard *shard, uint32_t n_sparse, uint64_t salt)
{
    uint8_t payload[256];
    uint32_t id;

    for (uint32_t t = 0; t < COUNT_OF(specs); t++) {
        struct table_spec spec = fixture_spec(t);

        assert_int_equal(shard_table_open(shard, &spec, false, &id, NULL), 0);
        for (uint64_t i = 0; i < fixture_n_rows(t, n_sparse); i++) {
            for (uint32_t b = 0; b < shard_table(shard, id)->payload_bytes; b++)
                payload[b] = (uint8_t)hash_mix2(hash_mix2(salt, i), b);
            assert_int_equal(restore_row(shard, id, t == 1 ? i : hash_mix(i),
                                         row_stamp(1 + i % 90, i % 256, 0), payload),
                             0);
        }
        restore_counts(shard, id, 100 + t, 91);
    }
}

void fixture_new(struct shard **shards, uint32_t n_shards, uint32_t n_sparse, uint64_t salt)
{
    for (uint32_t i = 0; i < n_shards; i++) {
        shards[i] = fixture_shard(i, n_shards);
        if (n_sparse)
            fixture_fill(shards[i], n_sparse, salt);
    }
}

void fixture_free(struct shard **shards, uint32_t n_shards)
{
    for (uint32_t i = 0; i < n_shards; i++)
        shard_free(shards[i]);
}

struct manifest *fixture_manifest(uint32_t node, uint32_t n_nodes, uint32_t n_shards)
{
    struct manifest *m = calloc(1, sizeof *m);

    assert_non_null(m);
    m->node = node;
    m->n_nodes = n_nodes;
    m->shards_per_node = m->n_files = n_shards;
    m->n_shards = n_nodes * n_shards;
    m->map_id = UINT64_C(0xfedcba9876543210);
    m->unix_ms = 1700000000123;
    return m;
}

struct shard_file_writer_config fixture_config(const struct file_ops *files,
                                               const struct manifest *m, uint32_t i)
{
    return (struct shard_file_writer_config){ .files = files,
                                              .data_dir = DATA_DIR,
                                              .number = m->number,
                                              .shard_index = i,
                                              .identity = { .node = m->node,
                                                            .shard = m->node * m->n_files + i,
                                                            .n_shards = m->n_shards,
                                                            .map_id = m->map_id },
                                              .base = m->base };
}

int fixture_write(const struct file_ops *files, struct manifest *m, uint32_t i,
                  struct shard *shard, struct err *err)
{
    struct shard_file_writer_config config = fixture_config(files, m, i);

    return shard_file_writer_save(&config, shard, 0, NULL, NULL, &m->files[i], err);
}

int fixture_save(const struct file_ops *files, struct shard **shards, uint32_t n_shards,
                 uint32_t keep, uint64_t *ret_number)
{
    struct manifest *m = fixture_manifest(0, 1, n_shards);
    struct err err = { 0 };
    int status = checkpoint_next(files, DATA_DIR, &m->number, &err);

    for (uint32_t i = 0; i < n_shards && !status; i++)
        status = fixture_write(files, m, i, shards[i], &err);
    if (!status)
        status = checkpoint_commit(files, DATA_DIR, m, keep, NULL, &err);
    if (status) {
        assert_int_equal(err.status, status);
        assert_true(err.text[0] != '\0');
    }
    if (ret_number)
        *ret_number = m->number;
    free(m);
    return status;
}

struct dump_row {
    uint32_t table;
    uint64_t key;
    const struct row *row;
    uint32_t payload_bytes;
};

static int dump_order(const void *a, const void *b)
{
    const struct dump_row *x = a, *y = b;

    if (x->table != y->table)
        return x->table < y->table ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static void dump_table(FILE *out, const struct shard_table *t)
{
    fwrite(t->spec.name, 1, strlen(t->spec.name) + 1, out);
    fwrite(&t->spec.params, 1, sizeof t->spec.params, out);
    fwrite(&t->spec.limits, 1, sizeof t->spec.limits, out);
    fprintf(out, "%d %u %llu %llu %d %g %d %u %d %llu %llu %g %g %g %d %u %d %g %llu %u\n",
            (int)t->spec.kind, t->spec.dim, (unsigned long long)t->spec.n_floats,
            (unsigned long long)t->spec.seed, (int)t->spec.init, (double)t->spec.init_scale,
            (int)t->spec.optim, t->spec.schedule.warmup_clocks, (int)t->spec.schedule.decay,
            (unsigned long long)t->spec.schedule.decay_start,
            (unsigned long long)t->spec.schedule.decay_clocks,
            (double)t->spec.schedule.decay_rate, (double)t->spec.schedule.decay_floor,
            (double)t->spec.clip_norm, (int)t->spec.mode, t->spec.bound, (int)t->spec.storage,
            (double)t->spec.row_decay, (unsigned long long)t->n_pushes, t->payload_bytes);
}

/* All that the shards hold, in an order that does not depend on how many they are: two equal
 * states are two equal dumps. */
static char *fixture_dump(struct shard **shards, uint32_t n_shards, size_t *ret_bytes)
{
    struct dump_row *rows = malloc(1);
    size_t n_rows = 0;
    char *text;
    FILE *out = open_memstream(&text, ret_bytes);

    for (uint32_t t = 0; t < shard_n_tables(shards[0]); t++) {
        dump_table(out, shard_table(shards[0], t));
        for (uint32_t s = 0; s < n_shards; s++) {
            const struct shard_table *table = shard_table(shards[s], t);
            uint64_t n = table_n_numbers(table->rows);

            assert_string_equal(table->spec.name, shard_table(shards[0], t)->spec.name);
            rows = realloc(rows, (n_rows + n + 1) * sizeof *rows);
            for (uint64_t i = 0; i < n; i++) {
                struct row *row = table_row(table->rows, i);

                if (row)
                    rows[n_rows++] =
                        (struct dump_row){ t, row->key, row, table->payload_bytes };
            }
        }
    }
    qsort(rows, n_rows, sizeof *rows, dump_order);
    for (size_t i = 0; i < n_rows; i++) {
        fwrite(&rows[i].table, 1, sizeof rows[i].table, out);
        fwrite(rows[i].row, 1, sizeof(struct row), out);
        fwrite(rows[i].row->floats, 1, rows[i].payload_bytes, out);
    }
    fclose(out);
    free(rows);
    return text;
}

void fixture_assert_equal(struct shard **a, uint32_t n_a, struct shard **b, uint32_t n_b)
{
    size_t n_x, n_y;
    char *x = fixture_dump(a, n_a, &n_x), *y = fixture_dump(b, n_b, &n_y);

    assert_int_equal(n_x, n_y);
    assert_memory_equal(x, y, n_x);
    free(x);
    free(y);
}

int fixture_load_shard(const struct file_ops *files, struct shard *shard, struct err *err)
{
    struct loader_facts facts;
    struct checkpoint found;
    int status = checkpoint_find_whole(files, DATA_DIR, &found, NULL, NULL, err);

    if (status)
        return status;
    status = loader_reshard(&(struct loader_config){ .files = files, .checkpoint = &found },
                            shard, &facts, err);
    checkpoint_close(&found);
    return status;
}

int fixture_load(const struct file_ops *files, struct shard **ret_shards, uint32_t n_shards)
{
    struct err err = { 0 };
    int status = 0;

    fixture_new(ret_shards, n_shards, 0, 0);
    for (uint32_t i = 0; i < n_shards && !status; i++)
        status = fixture_load_shard(files, ret_shards[i], &err);
    return status;
}

bool fixture_is_newest(struct crash_files *c, struct shard **shards, uint32_t n_shards)
{
    struct shard *loaded[N_SHARDS_MAX];
    size_t n_x, n_y;
    char *x, *y;
    bool same;

    assert_int_equal(fixture_load(&c->ops, loaded, n_shards), 0);
    x = fixture_dump(loaded, n_shards, &n_x);
    y = fixture_dump(shards, n_shards, &n_y);
    same = n_x == n_y && memcmp(x, y, n_x) == 0;
    free(x);
    free(y);
    fixture_free(loaded, n_shards);
    return same;
}
