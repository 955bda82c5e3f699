#include "worker/param_store_delta.h"

#include <math.h>
#include <string.h>

#include "common/hash.h"
#include "tests/support/seed.h"
#include "tests/unit/worker/cluster.h"

#define N_KEYS 50u
#define N_BLOCKS 3u
#define DIM 16u
#define DENSE_DIM 64u

/* Servers with a sparse table and a dense one, and a worker that pulls differences. */
struct bench {
    struct cluster *cluster;
    struct param_store *store;
    uint32_t rows, dense;
    uint64_t seed, n, clock;
    uint64_t keys[N_KEYS], blocks[N_BLOCKS];
    float got[N_KEYS * DIM], got_dense[N_BLOCKS * DENSE_DIM];
    uint32_t n_keys;
};

static uint64_t draw(struct bench *b)
{
    return hash_mix2(b->seed, b->n++);
}

static void bench_init(struct bench *b, const struct param_store_delta_options *options,
                       uint64_t seed)
{
    struct table_spec rows = { .dim = DIM,
                               .name = "job/t",
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 0.1f,
                               .seed = 5 },
                      dense = { .kind = TABLE_SPEC_DENSE,
                                .dim = DENSE_DIM,
                                .n_floats = N_BLOCKS * DENSE_DIM,
                                .name = "job/d",
                                .init = TABLE_SPEC_INIT_ZERO };
    struct err err;

    *b = (struct bench){ .seed = seed };
    rows.params = dense.params = table_spec_optim_defaults(TABLE_SPEC_SGD);
    b->cluster = cluster_new(2, TABLE_SPEC_MODE_ASYNC, 0);
    b->store = param_store_delta_new(&b->cluster->store, options);
    assert_int_equal(b->store->ops->overlaps, b->cluster->store.ops->overlaps);
    assert_int_equal(b->store->ops->table(b->store, &rows, &b->rows, &err), 0);
    assert_int_equal(b->store->ops->table(b->store, &dense, &b->dense, &err), 0);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        b->blocks[i] = i;
}

static void bench_deinit(struct bench *b)
{
    b->store->ops->close(b->store);
}

static void choose_keys(struct bench *b)
{
    b->n_keys = 0;
    for (uint32_t i = 0; i < N_KEYS; i++)
        if (draw(b) % 2)
            b->keys[b->n_keys++] = i * UINT64_C(0x123456789);
}

/* By somebody else; few keys, and all blocks. */
static void change(struct bench *b)
{
    float values[N_KEYS * DIM], dense[N_BLOCKS * DENSE_DIM];
    uint64_t keys[N_KEYS];
    struct ps_push_section sections[] = {
        { .table = b->rows, .keys = keys, .values = values },
        { .table = b->dense, .n_keys = N_BLOCKS, .keys = b->blocks, .values = dense },
    };

    for (uint32_t i = 0; i < N_KEYS; i++)
        if (draw(b) % 4 == 0)
            keys[sections[0].n_keys++] = i * UINT64_C(0x123456789);
    for (uint32_t i = 0; i < N_KEYS * DIM; i++)
        values[i] = (float)(hash_unit(draw(b)) - 0.5);
    for (uint32_t i = 0; i < N_BLOCKS * DENSE_DIM; i++)
        dense[i] = (float)(hash_unit(draw(b)) - 0.5);
    enter_shard();
    cluster_send(b->cluster, "other", b->cluster->other_encoder, ++b->cluster->other_seq, 0,
                 sections, 2);
}

static int pull(struct bench *b, struct param_store *from, float *rows, float *dense)
{
    const struct ps_pull_section sections[] = {
        { .table = b->rows, .n_keys = b->n_keys, .keys = b->keys, .dst = rows },
        { .table = b->dense, .n_keys = N_BLOCKS, .keys = b->blocks, .dst = dense },
    };
    struct err err;
    int status = from->ops->pull_start(from, b->clock++, sections, 2, &err);

    return status ? status : from->ops->pull_wait(from, &err);
}

static double distance(const float *a, const float *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / n);
}

/* Against what the servers say to somebody who has nothing. */
static void assert_within(struct bench *b, double tolerance, double dense_tolerance)
{
    float rows[N_KEYS * DIM], dense[N_BLOCKS * DENSE_DIM];

    assert_int_equal(pull(b, &b->cluster->store, rows, dense), 0);
    for (uint32_t i = 0; i < b->n_keys; i++)
        assert_true(distance(rows + i * DIM, b->got + i * DIM, DIM) <= tolerance * 1.000001);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        assert_true(distance(dense + i * DENSE_DIM, b->got_dense + i * DENSE_DIM, DENSE_DIM) <=
                    dense_tolerance * 1.000001);
}

/* A connection that is replaced; a pull that fails, whose answer is lost; servers and worker short of memory. */
static void rows_are_the_servers_within_the_tolerance(void **state)
{
    static const float tolerances[] = { 0, 0.05f };
    const uint64_t seed = seed_by_the_clock();

    (void)state;
    for (size_t i = 0; i < COUNT_OF(tolerances) * 2; i++) {
        const struct param_store_delta_options options = {
            .max_bytes = i % 2 ? 1 << 20 : 150000,
            .rows = { tolerances[i / 2], SECTION_DELTA_FULL },
            .dense = { tolerances[i / 2] / 2, SECTION_DELTA_FULL },
        };
        struct ps_stats stats;
        struct bench b;

        bench_init(&b, &options, seed);
        for (uint32_t round = 0; round < 500; round++) {
            const uint64_t dice = draw(&b) % 16;

            change(&b);
            choose_keys(&b);
            if (dice == 0) {
                struct pull_deltas **deltas = &b.cluster->deltas[draw(&b) % 2];

                pull_deltas_free(*deltas);
                *deltas = pull_deltas_new(&b.cluster->deltas_memory);
            }
            b.cluster->fail = dice == 1 ? PS_EFENCED : 0;
            b.cluster->garbles = dice == 2;
            b.cluster->deltas_memory.budget.max = dice == 3 ? 1 : 0;
            if (pull(&b, b.store, b.got, b.got_dense) == 0)
                assert_within(&b, tolerances[i / 2], tolerances[i / 2] / 2);
            else
                assert_true(dice == 1 || dice == 2);
            b.cluster->fail = 0;
            b.cluster->garbles = false;
        }
        b.store->ops->stats(b.store, &stats);
        assert_true(stats.bytes_saved > 10000);
        bench_deinit(&b);
    }
}

/* Onebit leaves something, and the next pulls bring it. */
static void rows_that_stay_become_the_servers(void **state)
{
    const struct param_store_delta_options options = {
        .max_bytes = 1 << 20,
        .rows = { 1e-4f, SECTION_DELTA_ONEBIT },
        .dense = { 1e-4f, SECTION_DELTA_ONEBIT },
    };
    struct bench b;

    (void)state;
    bench_init(&b, &options, seed_by_the_clock());
    change(&b);
    choose_keys(&b);
    for (uint32_t i = 0; i < 300; i++)
        assert_int_equal(pull(&b, b.store, b.got, b.got_dense), 0);
    assert_within(&b, 1e-4, 1e-4);
    bench_deinit(&b);
}

/* What asks for more than rows gets it of the servers alone. */
static void other_pulls_are_plain(void **state)
{
    const struct param_store_delta_options options = { .max_bytes = 1 << 20,
                                                       .rows = { 100, SECTION_DELTA_FULL } };
    uint8_t present[8];
    struct ps_pull_section section;
    struct bench b;
    struct err err;
    float rows[N_KEYS * DIM], want[N_KEYS * DIM], dense[N_BLOCKS * DENSE_DIM];

    (void)state;
    bench_init(&b, &options, 7);
    change(&b);
    choose_keys(&b);
    assert_int_equal(pull(&b, &b.cluster->store, want, dense), 0);
    section = (struct ps_pull_section){
        .table = b.rows, .n_keys = b.n_keys, .keys = b.keys, .dst = rows, .present = present
    };
    assert_int_equal(b.store->ops->pull_start(b.store, 0, &section, 1, &err), 0);
    assert_int_equal(b.store->ops->pull_wait(b.store, &err), 0);
    assert_memory_equal(rows, want, b.n_keys * DIM * sizeof(float));
    section.present = NULL;
    memset(rows, 0, sizeof rows);
    assert_int_equal(b.store->ops->pull_for_eval(b.store, 0, &section, 1, &err), 0);
    assert_int_equal(b.store->ops->pull_wait(b.store, &err), 0);
    assert_memory_equal(rows, want, b.n_keys * DIM * sizeof(float));
    assert_int_equal(b.store->ops->pull_start(b.store, 0, &section, 1, &err), 0);
    assert_int_equal(b.store->ops->pull_wait(b.store, &err), 0);
    assert_memory_not_equal(rows, want, b.n_keys * DIM * sizeof(float));
    bench_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_servers_within_the_tolerance),
        cmocka_unit_test(rows_that_stay_become_the_servers),
        cmocka_unit_test(other_pulls_are_plain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
