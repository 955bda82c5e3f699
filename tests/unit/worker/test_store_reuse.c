#include "worker/store_reuse.h"

#include <string.h>
#include <time.h>

#include "common/hash.h"
#include "tests/unit/worker/cluster.h"

#define N_KEYS 40u
#define DIM 4u
#define BOUND 3u

/* Servers with one table, whose rows say as of which min clock they are. */
struct bench {
    struct cluster *cluster;
    struct store *reuse;
    uint32_t table;
    uint64_t keys[N_KEYS];
};

static void bench_init(struct bench *b, enum spec_mode mode, uint32_t bound,
                       uint32_t reuse_clocks)
{
    struct table_spec spec = { .dim = DIM, .name = "job/t", .init = SPEC_INIT_ZERO };
    struct err err;

    spec.params = spec_optim_defaults(SPEC_SGD);
    b->cluster = cluster_new(2, SPEC_MODE_ASYNC, 0);
    b->reuse = store_reuse_new(
        &b->cluster->store,
        &(struct store_reuse_options){
            .max_bytes = 1 << 20, .mode = mode, .bound = bound, .reuse_clocks = reuse_clocks });
    assert_int_equal(b->reuse->ops->table(b->reuse, &spec, &b->table, &err), 0);
    for (uint32_t i = 0; i < N_KEYS; i++)
        b->keys[i] = i * UINT64_C(0x123456789);
}

static void bench_deinit(struct bench *b)
{
    b->reuse->ops->close(b->reuse);
}

/* The servers' rows from now on hold the clock that the slowest worker has reached. */
static void reach(struct bench *b, uint64_t min_clock)
{
    float values[N_KEYS * DIM];
    const struct ps_push_section section = { .table = b->table,
                                             .op = SECTION_ASSIGN,
                                             .n_keys = N_KEYS,
                                             .keys = b->keys,
                                             .values = values };

    for (uint32_t i = 0; i < N_KEYS * DIM; i++)
        values[i] = (float)min_clock;
    enter_shard();
    cluster_send(b->cluster, "other", b->cluster->other_encoder, ++b->cluster->other_seq, 0,
                 &section, 1);
    b->cluster->stats.min_clock = min_clock;
}

static void pull(struct bench *b, uint64_t clock, const uint64_t *keys, uint32_t n, float *dst)
{
    const struct ps_pull_section section = {
        .table = b->table, .n_keys = n, .keys = keys, .dst = dst
    };
    struct err err;

    assert_int_equal(b->reuse->ops->pull_start(b->reuse, clock, &section, 1, &err), 0);
    assert_int_equal(b->reuse->ops->pull_wait(b->reuse, &err), 0);
}

static uint64_t n_pulled(const struct bench *b)
{
    return b->cluster->stats.rows_pulled;
}

static void a_row_is_good_for_as_many_clocks_as_the_bound(void **state)
{
    static const enum spec_mode modes[] = { SPEC_MODE_SSP, SPEC_MODE_ASYNC };
    float row[DIM];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        struct bench b;

        bench_init(&b, modes[i], BOUND, i ? BOUND : 100);
        reach(&b, 5);
        pull(&b, 5, b.keys, 1, row);
        assert_int_equal(n_pulled(&b), 1);
        reach(&b, 7);
        pull(&b, 5 + BOUND, b.keys, 1, row);
        assert_int_equal(n_pulled(&b), 1);
        assert_true(row[0] == 5 && row[DIM - 1] == 5);
        pull(&b, 6 + BOUND, b.keys, 1, row);
        assert_int_equal(n_pulled(&b), 2);
        assert_true(row[0] == 7);
        bench_deinit(&b);
    }
}

static void in_lock_step_nothing_is_reused(void **state)
{
    struct bench b;
    float row[DIM];

    (void)state;
    bench_init(&b, SPEC_MODE_BSP, 0, BOUND);
    for (uint32_t i = 0; i < 4; i++)
        pull(&b, 0, b.keys, 1, row);
    assert_int_equal(n_pulled(&b), 4);
    bench_deinit(&b);
}

static void after_a_failure_nothing_is_left(void **state)
{
    struct bench b;
    struct err err;
    float row[2 * DIM];

    (void)state;
    bench_init(&b, SPEC_MODE_ASYNC, 0, BOUND);
    pull(&b, 0, b.keys, 1, row);
    b.cluster->fail = PS_EFENCED;
    assert_int_equal(b.reuse->ops->pull_start(
                         b.reuse, 0,
                         &(struct ps_pull_section){ b.table, CODEC_FP32, 2, b.keys, row, NULL },
                         1, &err),
                     PS_EFENCED);
    pull(&b, 0, b.keys, 1, row);
    assert_int_equal(n_pulled(&b), 2);
    bench_deinit(&b);
}

/* Against the rule itself: what is read at c is not older than c - bound, and not from the future. */
static void at_random_no_row_is_older_than_the_bound(void **state)
{
    uint64_t seed = (uint64_t)time(NULL), n = 0, min_clock = 0, clock = 0;
    struct bench b;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bench_init(&b, SPEC_MODE_SSP, BOUND, BOUND);
    reach(&b, 0);
    for (int i = 0; i < 2000; i++) {
        uint64_t keys[N_KEYS];
        float rows[N_KEYS * DIM];
        uint32_t n_keys = 0;

        if (hash_mix2(seed, n++) % 2 && min_clock < clock)
            reach(&b, ++min_clock);
        if (clock < min_clock + BOUND)
            clock += hash_mix2(seed, n++) % 2;
        for (uint32_t k = 0; k < N_KEYS; k++)
            if (hash_mix2(seed, n++) % 3 == 0)
                keys[n_keys++] = b.keys[k];
        pull(&b, clock, keys, n_keys, rows);
        for (uint32_t k = 0; k < n_keys * DIM; k++) {
            assert_true(rows[k] + BOUND >= (float)clock);
            assert_true(rows[k] <= (float)min_clock);
        }
    }
    bench_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_good_for_as_many_clocks_as_the_bound),
        cmocka_unit_test(in_lock_step_nothing_is_reused),
        cmocka_unit_test(after_a_failure_nothing_is_left),
        cmocka_unit_test(at_random_no_row_is_older_than_the_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
