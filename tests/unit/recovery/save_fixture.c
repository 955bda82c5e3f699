#include "tests/unit/recovery/save_fixture.h"

void bed_init(struct bed *b)
{
    *b = (struct bed){ .s = make_shard(0, 1, 0), .m = calloc(1, sizeof(struct manifest)) };
    crash_files_init(&b->c);
    b->spec = sparse_spec("t", DIM, TABLE_SPEC_ADAGRAD);
    b->table = make_table(b->s, &b->spec);
    b->worker = join(b->s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
}

void bed_deinit(struct bed *b)
{
    assert_int_equal(crash_files_n_open(&b->c), 0);
    enter_shard();
    shard_free(b->s);
    crash_files_deinit(&b->c);
    free(b->m);
}

void bed_push(struct bed *b, uint64_t first, uint32_t n)
{
    static uint64_t keys[N_KEYS];
    static float values[N_KEYS * DIM];
    struct push *push = next_push(b->worker, b->clock++);

    assert_true(n <= N_KEYS);
    for (uint32_t i = 0; i < n; i++)
        keys[i] = first + i;
    for (uint32_t i = 0; i < n * DIM; i++)
        values[i] = 0.25f;
    add_gradient(push, b->table, DIM, keys, n, values);
    (void)must_push(b->s, b->worker, push);
}

int bed_next(struct bed *b, uint64_t base, struct err *err)
{
    *b->m = (struct manifest){ .n_nodes = 1,
                               .shards_per_node = 1,
                               .n_shards = identity.n_shards,
                               .map_id = identity.map_id,
                               .n_files = 1,
                               .base = base };
    b->first++;
    return checkpoint_next(&b->c.ops, DATA_DIR, &b->m->number, err);
}

struct shard_file_writer_config bed_config(struct bed *b)
{
    return (struct shard_file_writer_config){ .files = &b->c.ops,
                                              .data_dir = DATA_DIR,
                                              .number = b->m->number,
                                              .identity = identity,
                                              .base = b->m->base };
}

int bed_try_save(struct bed *b, uint64_t base, uint32_t keep, struct err *err)
{
    struct shard_file_writer_config config;
    int status = bed_next(b, base, err);

    enter_shard();
    config = bed_config(b);
    if (!status)
        status =
            shard_file_writer_save(&config, b->s, b->first, NULL, NULL, &b->m->files[0], err);
    if (!status)
        status = checkpoint_commit(&b->c.ops, DATA_DIR, b->m, keep, b->firsts, err);
    return status;
}

uint64_t bed_save(struct bed *b, uint64_t base, uint32_t keep)
{
    struct err err = { 0 };

    if (bed_try_save(b, base, keep, &err) != 0)
        fail_msg("%s", err.text);
    return b->m->number;
}

int bed_load(struct bed *b, const struct checkpoint *c, struct shard **ret,
             struct loader_facts *ret_facts, struct err *err)
{
    int status;

    *ret = make_shard(0, 1, 0);
    enter_shard();
    status = loader_load(&(struct loader_config){ .files = &b->c.ops, .checkpoint = c }, 0,
                         *ret, 0, ret_facts, err);
    replay_end(*ret, 0);
    return status;
}

void bed_assert_newest(struct bed *b, uint64_t want)
{
    struct checkpoint found;
    struct loader_facts facts;
    struct shard *again;
    struct err err = { 0 };

    assert_int_equal(checkpoint_find(&b->c.ops, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
    assert_int_equal(found.links[0].number, want);
    if (bed_load(b, &found, &again, &facts, &err) != 0)
        fail_msg("%s", err.text);
    assert_same_shard(b->s, again);
    enter_shard();
    shard_free(again);
    checkpoint_close(&found);
}
