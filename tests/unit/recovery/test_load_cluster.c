/* Data directories of one layout into shards of another. Those with a log behind them: tests/system/test_tools.py. */
#include <errno.h>

#include "common/memory.h"
#include "server/checkpoint/directory.h"
#include "server/recovery/load_cluster.h"
#include "tests/support/seed.h"
#include "tests/unit/checkpoint/fixture.h"

#define N_NODES_MAX 3u

/* A cluster's shards, and the directories in which each node has kept its own. */
struct cluster {
    struct crash_files files;
    uint32_t n_nodes, n_shards; /* a node */
    struct shard *shards[N_NODES_MAX * N_SHARDS_MAX];
    const char *paths[N_NODES_MAX];
};

static void save_node(struct cluster *c, uint32_t node)
{
    struct manifest *m = fixture_manifest(node, c->n_nodes, c->n_shards);
    struct err err = { 0 };

    assert_int_equal(c->files.ops.mkdir(c->files.ops.state, c->paths[node]), 0);
    m->map_id = 0;
    assert_int_equal(checkpoint_next(&c->files.ops, c->paths[node], &m->number, &err), 0);
    for (uint32_t i = 0; i < c->n_shards; i++) {
        struct shard_file_writer_config config = fixture_config(&c->files.ops, m, i);

        config.data_dir = c->paths[node];
        assert_int_equal(shard_file_writer_save(&config, c->shards[node * c->n_shards + i], 0,
                                                NULL, NULL, &m->files[i], &err),
                         0);
    }
    assert_int_equal(checkpoint_commit(&c->files.ops, c->paths[node], m, 1, NULL, &err), 0);
    free(m);
}

static void make(struct cluster *c, uint32_t n_nodes, uint32_t n_shards, uint32_t n_rows)
{
    static const char *const paths[N_NODES_MAX] = { "a", "b", "c" };

    *c = (struct cluster){ .n_nodes = n_nodes, .n_shards = n_shards };
    memcpy(c->paths, paths, sizeof paths);
    crash_files_init(&c->files);
    enter_shard();
    fixture_new(c->shards, n_nodes * n_shards, n_rows, 3);
    for (uint32_t node = 0; node < n_nodes; node++)
        save_node(c, node);
}

static void unmake(struct cluster *c)
{
    enter_shard();
    fixture_free(c->shards, c->n_nodes * c->n_shards);
    crash_files_deinit(&c->files);
}

static struct load_cluster_config config_of(const struct cluster *c)
{
    return (struct load_cluster_config){ .files = &c->files.ops,
                                         .paths = c->paths,
                                         .n_paths = c->n_nodes };
}

static void any_layout_holds_what_any_other_held(void **state)
{
    const uint64_t seed = seed_by_the_clock();

    (void)state;
    for (uint64_t round = 0; round < 12; round++) {
        uint64_t dice = hash_mix2(seed, round);
        uint32_t n_to = 1 + (uint32_t)(dice >> 8) % 5;
        struct load_cluster_config config;
        struct load_cluster_facts facts;
        struct shard *to[5], *one;
        struct load_cluster *collect;
        struct cluster c;

        make(&c, 1 + (uint32_t)dice % N_NODES_MAX, 1 + (uint32_t)(dice >> 16) % 4, 1500);
        config = config_of(&c);
        enter_shard();
        assert_int_equal(load_cluster_open(&config, &collect, NULL), 0);
        assert_int_equal(load_cluster_shards_per_node(collect), c.n_shards);
        fixture_new(to, n_to, 0, 0);
        assert_int_equal(load_cluster_into(collect, to, n_to, 1, &facts, NULL), 0);
        assert_true(facts.n_bytes > 0 && facts.n_records == 0);
        fixture_assert_equal(c.shards, c.n_nodes * c.n_shards, to, n_to);
        load_cluster_close(collect);
        fixture_free(to, n_to);
        assert_int_equal(load_cluster_one(&config, 1, &one, &facts, NULL), 0);
        fixture_assert_equal(c.shards, c.n_nodes * c.n_shards, &one, 1);
        shard_free(one);
        unmake(&c);
    }
}

static void only_the_tables_that_are_asked_for_come(void **state)
{
    static const char *const wanted[] = { "half", "top.weight" };
    static const char *const missing[] = { "half", "nope" };
    struct load_cluster_config config;
    struct load_cluster_facts facts;
    struct err err = { 0 };
    struct shard *one;
    struct cluster c;

    (void)state;
    make(&c, 1, 2, 1000);
    config = config_of(&c);
    config.tables = wanted;
    config.n_tables = 2;
    enter_shard();
    assert_int_equal(load_cluster_one(&config, 1, &one, &facts, NULL), 0);
    assert_int_equal(shard_n_tables(one), 2);
    for (uint32_t id = 0; id < 2; id++) {
        const char *name = shard_table(one, id)->spec.name;

        assert_true(strcmp(name, wanted[0]) == 0 || strcmp(name, wanted[1]) == 0);
        assert_true(table_n_rows(shard_table(one, id)->rows) > 0);
    }
    shard_free(one);
    config.tables = missing;
    assert_int_equal(load_cluster_one(&config, 1, &one, &facts, &err), PS_ENOTABLE);
    assert_non_null(strstr(err.text, "no table nope"));
    unmake(&c);
}

static int status_of(const struct load_cluster_config *config, struct err *err)
{
    struct load_cluster_facts facts;
    struct shard *one = NULL;
    int status;

    enter_shard();
    status = load_cluster_one(config, 1, &one, &facts, err);
    shard_free(one);
    return status;
}

static void a_set_of_directories_must_be_one_clusters(void **state)
{
    const char *const twice[] = { "a", "a" };
    struct load_cluster_config config;
    struct err err = { 0 };
    struct cluster c;

    (void)state;
    make(&c, 2, 1, 100);
    config = config_of(&c);
    assert_int_equal(status_of(&config, &err), 0);
    config.n_paths = 1;
    assert_int_equal(status_of(&config, &err), PS_ECLUSTER);
    assert_non_null(strstr(err.text, "a was written by node 0, one of 2 nodes"));
    config.extent = LOAD_CLUSTER_PART;
    assert_int_equal(status_of(&config, &err), 0);
    config.paths = twice;
    config.n_paths = 2;
    assert_int_equal(status_of(&config, &err), PS_ECLUSTER);
    assert_non_null(strstr(err.text, "both written by node 0"));
    config.paths = (const char *const[]){ "nowhere" };
    config.n_paths = 1;
    assert_int_equal(status_of(&config, &err), PS_ENOCHECKPOINT);
    unmake(&c);
}

static void whatever_cannot_be_read_ends_it_with_a_sentence(void **state)
{
    struct load_cluster_config config;
    struct cluster c;
    long n_ops;

    (void)state;
    make(&c, 2, 2, 300);
    config = config_of(&c);
    crash_files_heal(&c.files);
    assert_int_equal(status_of(&config, NULL), 0);
    n_ops = c.files.n_ops;
    for (long k = 0; k < n_ops; k++) {
        struct err err = { 0 };

        crash_files_heal(&c.files);
        c.files.fail_at = k;
        if (status_of(&config, &err)) /* closing may fail, and a look that only prefers */
            assert_true(err.text[0] != '\0');
        assert_int_equal(crash_files_n_open(&c.files), 0);
    }
    unmake(&c);
}

#ifdef PS_FAULTS
static void without_memory_it_ends_with_a_sentence(void **state)
{
    struct load_cluster_config config;
    struct cluster c;
    int status = -ENOMEM;

    (void)state;
    make(&c, 1, 2, 300);
    config = config_of(&c);
    for (long k = 0; status; k++) {
        struct err err = { 0 };

        memory_fail_after(k);
        status = status_of(&config, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true(!status == !err.text[0]);
        assert_int_equal(crash_files_n_open(&c.files), 0);
    }
    unmake(&c);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_holds_what_any_other_held),
        cmocka_unit_test(only_the_tables_that_are_asked_for_come),
        cmocka_unit_test(a_set_of_directories_must_be_one_clusters),
        cmocka_unit_test(whatever_cannot_be_read_ends_it_with_a_sentence),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_it_ends_with_a_sentence),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
