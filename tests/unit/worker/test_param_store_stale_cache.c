#include "worker/param_store_stale_cache.h"

#include <string.h>

#include "common/hash.h"
#include "tests/support/seed.h"
#include "tests/unit/worker/cluster.h"
#include "worker/cache/stale_rows.h"
#include "worker/sync_policy.h"

#define N_KEYS 40u
#define DIM 4u
#define BOUND 3u

/* Servers with one table, whose rows say as of which min clock they are. */
struct bench {
    struct cluster *cluster;
    struct param_store *reuse;
    uint32_t table;
    uint64_t keys[N_KEYS];
};

static void bench_init_with(struct bench *b,
                            const struct param_store_stale_cache_options *options)
{
    struct table_spec spec = { .dim = DIM, .name = "job/t", .init = TABLE_SPEC_INIT_ZERO };
    struct err err;

    spec.params = table_spec_optim_defaults(TABLE_SPEC_SGD);
    b->cluster = cluster_new(2, TABLE_SPEC_MODE_ASYNC, 0);
    b->reuse = param_store_stale_cache_new(&b->cluster->store, options);
    assert_int_equal(b->reuse->ops->overlaps, b->cluster->store.ops->overlaps);
    assert_int_equal(b->reuse->ops->table(b->reuse, &spec, &b->table, &err), 0);
    for (uint32_t i = 0; i < N_KEYS; i++)
        b->keys[i] = i * UINT64_C(0x123456789);
}

static void bench_init(struct bench *b, enum table_spec_mode mode, uint32_t bound,
                       uint32_t reuse_clocks)
{
    bench_init_with(
        b,
        &(struct param_store_stale_cache_options){
            .max_bytes = 1 << 20, .mode = mode, .bound = bound, .reuse_clocks = reuse_clocks });
}

static void bench_deinit(struct bench *b)
{
    b->reuse->ops->close(b->reuse);
}

/* The servers' rows from now on hold the clock that the slowest worker has reached. */
static void advance(struct bench *b, uint64_t min_clock)
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
    static const enum table_spec_mode modes[] = { TABLE_SPEC_MODE_SSP, TABLE_SPEC_MODE_ASYNC };
    struct ps_stats stats;
    float row[DIM];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        struct bench b;

        bench_init(&b, modes[i], BOUND, i ? BOUND : 100);
        advance(&b, 5);
        pull(&b, 5, b.keys, 1, row);
        assert_int_equal(n_pulled(&b), 1);
        advance(&b, 7);
        pull(&b, 5 + BOUND, b.keys, 1, row);
        assert_int_equal(n_pulled(&b), 1);
        assert_true(row[0] == 5 && row[DIM - 1] == 5);
        b.reuse->ops->stats(b.reuse, &stats);
        assert_int_equal(stats.pulled_clock, 5);
        assert_int_equal(stats.staleness_max, BOUND);
        pull(&b, 6 + BOUND, b.keys, 1, row);
        assert_int_equal(n_pulled(&b), 2);
        assert_true(row[0] == 7);
        bench_deinit(&b);
    }
}

/* Where servers may hold a step up for a cut, it has to ask for leave to begin. */
static void with_a_bound_of_the_job_a_step_that_has_all_its_rows_asks_all_the_same(void **state)
{
    static const enum table_spec_mode modes[] = { TABLE_SPEC_MODE_SSP, TABLE_SPEC_MODE_ASYNC };
    float row[DIM];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        struct bench b;

        bench_init(&b, modes[i], BOUND, BOUND);
        advance(&b, 5);
        for (uint64_t n = 0; n < 3; n++) {
            pull(&b, 5 + n, b.keys, 1, row);
            assert_int_equal(b.cluster->stats.pulls,
                             modes[i] == TABLE_SPEC_MODE_SSP ? 1 + n : 1);
        }
        assert_int_equal(n_pulled(&b), 1);
        assert_true(row[0] == 5);
        bench_deinit(&b);
    }
}

static void in_lock_step_nothing_is_reused(void **state)
{
    struct bench b;
    float row[DIM];

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_BSP, 0, BOUND);
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
    bench_init(&b, TABLE_SPEC_MODE_ASYNC, 0, BOUND);
    pull(&b, 0, b.keys, 1, row);
    b.cluster->fail = PS_EFENCED;
    assert_int_equal(b.reuse->ops->pull_start(
                         b.reuse, 0,
                         &(struct ps_pull_section){
                             .table = b.table, .n_keys = 2, .keys = b.keys, .dst = row },
                         1, &err),
                     PS_EFENCED);
    pull(&b, 0, b.keys, 1, row);
    assert_int_equal(n_pulled(&b), 2);
    bench_deinit(&b);
}

/* Against the rule itself: what is read at c is not older than c - bound, and not from the future. */
static void at_random_no_row_is_older_than_the_bound(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    uint64_t n = 0, min_clock = 0, clock = 0;
    struct bench b;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, BOUND, BOUND);
    advance(&b, 0);
    for (int i = 0; i < 2000; i++) {
        uint64_t keys[N_KEYS];
        float rows[N_KEYS * DIM];
        uint32_t n_keys = 0;

        if (hash_mix2(seed, n++) % 2 && min_clock < clock)
            advance(&b, ++min_clock);
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

/* A run's dense blocks with --reuse-clocks and --dense-refresh: what they are answered from, and for
 * how many steps they are used, are together within the bound. */
static void blocks_that_are_reused_and_used_again_are_not_older_than_the_bound(void **state)
{
    static struct settings settings = { .dense_refresh = "2", .mode = 1, .staleness = BOUND };
    const uint64_t seed = seed_by_the_clock();
    uint64_t n_pulls = 0, min_clock = 0, used_at = 0, oldest = 0;
    struct sync_policy *wire;
    struct bench b;
    struct err err;
    struct ps_stats stats;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, BOUND, BOUND);
    assert_int_equal(sync_policy_new(&settings, b.reuse, 0, false, true, &wire, &err), 0);
    advance(&b, 0);
    for (uint64_t clock = 0; clock < 2000; clock++) {
        const uint64_t keys[] = { b.keys[0], b.keys[1 + clock % (N_KEYS - 1)] };
        float rows[2 * DIM];
        bool wants = sync_policy_wants_dense(wire, clock);

        /* The block, and a row that is new and so asked of the servers. */
        pull(&b, clock, wants ? keys : keys + 1, wants ? 2 : 1, rows);
        used_at = wants ? (uint64_t)rows[0] : used_at;
        n_pulls += wants;
        sync_policy_pulled(wire, clock, wants);
        assert_true(used_at + BOUND >= clock);
        if (clock > used_at && clock - used_at > oldest)
            oldest = clock - used_at;
        while (min_clock + BOUND <= clock || (min_clock <= clock && hash_mix2(seed, clock) % 2))
            advance(&b, ++min_clock);
    }
    sync_policy_stats(wire, &stats); /* with the steps that have used them again */
    assert_true(stats.staleness_max >= oldest && stats.staleness_max <= BOUND && oldest > 0);
    assert_true(n_pulls < 2000 && stats.rows_cached > 0);
    sync_policy_free(wire);
    bench_deinit(&b);
}

static void a_pull_outside_training_is_answered_by_the_servers_and_not_counted(void **state)
{
    const struct param_store_ops *ops;
    struct ps_pull_section section;
    struct ps_stats stats;
    struct bench b;
    struct err err;
    float row[DIM];

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_ASYNC, 0, BOUND);
    ops = b.reuse->ops;
    section =
        (struct ps_pull_section){ .table = b.table, .n_keys = 1, .keys = b.keys, .dst = row };
    advance(&b, 5);
    pull(&b, 5, b.keys, 1, row);
    advance(&b, 6);
    assert_int_equal(ops->pull_for_eval(b.reuse, 6, &section, 1, &err), 0);
    assert_int_equal(ops->pull_wait(b.reuse, &err), 0);
    assert_true(row[0] == 6);
    pull(&b, 6, b.keys, 1, row);
    assert_true(row[0] == 5);
    ops->stats(b.reuse, &stats);
    assert_int_equal(stats.rows_asked, 2);
    assert_int_equal(stats.rows_cached, 1);
    bench_deinit(&b);
}

/* What stands at a place, according to what the answers have told. */
struct place {
    uint64_t version;
    float row[DIM];
};

#define PLACES_MAX 4096u
#define FULL_BYTES (UINT64_C(256) << 10)

/* Of an answer with versions and places; counts those that were known. */
static uint32_t check_places(struct place *places, const uint64_t *versions,
                             const uint32_t *place_of, const float *rows, uint32_t n)
{
    bool named[PLACES_MAX] = { false };
    uint32_t n_known = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct place *p = &places[place_of[i] % PLACES_MAX];

        if (!versions[i])
            continue;
        assert_true(place_of[i] < PLACES_MAX && !named[place_of[i]]);
        named[place_of[i]] = true;
        if (p->version == versions[i])
            assert_memory_equal(p->row, rows + i * DIM, sizeof p->row);
        n_known += p->version == versions[i];
        p->version = versions[i];
        memcpy(p->row, rows + i * DIM, sizeof p->row);
    }
    return n_known;
}

/* The servers' rows are others at each reach(), and every key has its own. */
static void advance_others(struct bench *b, uint64_t min_clock, const uint64_t *keys,
                           uint32_t n)
{
    float values[N_KEYS * DIM];
    const struct ps_push_section section = {
        .table = b->table, .op = SECTION_ASSIGN, .n_keys = n, .keys = keys, .values = values
    };

    for (uint32_t i = 0; i < n * DIM; i++)
        values[i] = hash_unit(hash_mix2(keys[i / DIM], min_clock * DIM + i));
    enter_shard();
    cluster_send(b->cluster, "other", b->cluster->other_encoder, ++b->cluster->other_seq, 0,
                 &section, 1);
    b->cluster->stats.min_clock = min_clock;
}

/* At random, with keys that come and go, rows that change, and failures. */
static void only_the_same_bits_have_the_same_place_and_version(void **state)
{
    static struct place places[PLACES_MAX];
    const uint64_t seed = seed_by_the_clock();
    uint64_t n = 0, min_clock = 0, n_known = 0;
    struct ps_stats stats;
    struct bench b;
    struct err err;

    (void)state;
    memset(places, 0, sizeof places);
    bench_init(&b, TABLE_SPEC_MODE_ASYNC, 0, BOUND);
    for (uint64_t clock = 0; clock < 3000; clock++) {
        uint64_t keys[N_KEYS], versions[N_KEYS];
        uint32_t place_of[N_KEYS], n_keys = 0;
        float rows[N_KEYS * DIM];
        struct ps_pull_section section = { .table = b.table, .keys = keys, .dst = rows };

        for (uint64_t key = clock / 40 * 7; n_keys < N_KEYS && key < clock / 40 * 7 + 90; key++)
            if (hash_mix2(seed, n++) % 2)
                keys[n_keys++] = key;
        section.n_keys = n_keys;
        if (hash_mix2(seed, n++) % 2)
            advance_others(&b, min_clock = clock, keys, n_keys);
        if (hash_mix2(seed, n++) % 16 == 0)
            b.cluster->fail = PS_EFENCED;
        memset(versions, 0xff, sizeof versions);
        section.versions = versions;
        section.places = place_of;
        if (b.reuse->ops->pull_start(b.reuse, clock, &section, 1, &err) == 0 &&
            b.reuse->ops->pull_wait(b.reuse, &err) == 0)
            n_known += check_places(places, versions, place_of, rows, n_keys);
        b.cluster->fail = 0;
    }
    b.reuse->ops->stats(b.reuse, &stats);
    assert_true(b.reuse->ops->has_places);
    assert_true(n_known > 10000 && n_known <= stats.rows_cached);
    bench_deinit(&b);
}

/* In lock step, or without room, all rows are the servers'. */
static void a_row_that_is_not_kept_has_no_version(void **state)
{
    static const struct param_store_stale_cache_options options[] = {
        { .max_bytes = 1 << 20, .mode = TABLE_SPEC_MODE_BSP, .reuse_clocks = BOUND },
        { .max_bytes = 1, .mode = TABLE_SPEC_MODE_ASYNC, .reuse_clocks = BOUND },
    };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        struct bench b;
        uint64_t version = 1;
        uint32_t place;
        float row[DIM];
        struct ps_pull_section section = {
            .n_keys = 1, .dst = row, .versions = &version, .places = &place
        };

        bench_init_with(&b, &options[i]);
        section.table = b.table;
        section.keys = b.keys;
        assert_int_equal(b.reuse->ops->pull_start(b.reuse, 0, &section, 1, &err), 0);
        assert_int_equal(b.reuse->ops->pull_wait(b.reuse, &err), 0);
        assert_int_equal(version, 0);
        bench_deinit(&b);
    }
}

/* More rows than there is room for: those that found none have no version, the others are told again. */
static void rows_beyond_the_cache_have_no_version(void **state)
{
    enum { N = 20000 };
    static struct place places[PLACES_MAX];
    static uint64_t keys[N], versions[N];
    static uint32_t place_of[N];
    static float rows[N * DIM];
    struct ps_pull_section section = {
        .n_keys = N, .keys = keys, .dst = rows, .versions = versions, .places = place_of
    };
    const struct param_store_stale_cache_options options = { .max_bytes = FULL_BYTES / 2,
                                                             .mode = TABLE_SPEC_MODE_ASYNC,
                                                             .reuse_clocks = BOUND };
    uint32_t n_kept = 0;
    struct bench b;
    struct err err;

    (void)state;
    memset(places, 0, sizeof places);
    for (uint32_t i = 0; i < N; i++)
        keys[i] = i;
    bench_init_with(&b, &options);
    section.table = b.table;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(b.reuse->ops->pull_start(b.reuse, 0, &section, 1, &err), 0);
        assert_int_equal(b.reuse->ops->pull_wait(b.reuse, &err), 0);
        assert_int_equal(check_places(places, versions, place_of, rows, N), turn ? n_kept : 0);
        n_kept = 0;
        for (uint32_t i = 0; i < N; i++)
            n_kept += versions[i] != 0;
    }
    assert_true(n_kept > 100 && n_kept < PLACES_MAX);
    bench_deinit(&b);
}

#define FULL_DIM 64u

/* Rows of keys from .. until neither table takes more. Returns how many both hold in the end. */
static uint64_t fill(struct stale_rows *tables, uint64_t from, uint64_t clock)
{
    static const float row[FULL_DIM];
    uint32_t place;

    for (uint64_t key = from; key < from + 4000; key++)
        (void)stale_rows_put(&tables[key % 2], key, (struct stale_rows_origin){ clock, clock },
                             row, &place);
    return table_n_rows(tables[0].rows) + table_n_rows(tables[1].rows);
}

static void
tables_share_one_bound_and_keep_new_rows_in_the_places_of_those_that_went(void **state)
{
    struct memory_budget budget = { .max = FULL_BYTES };
    struct stale_rows tables[2];
    uint64_t n_full;

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(stale_rows_init(&tables[i], FULL_DIM, BOUND, &budget), 0);
    n_full = fill(tables, 0, 1);
    assert_true(n_full > 100 && n_full < 4000);
    for (uint64_t turn = 1; turn < 20; turn++) {
        uint64_t clock = 1 + turn * 2 * BOUND, n_kept;

        for (int i = 0; i < 2; i++) {
            stale_rows_sweep(&tables[i], clock);
            assert_int_equal(table_n_rows(tables[i].rows), 0);
        }
        n_kept = fill(tables, turn * 100000, clock);
        assert_true(n_kept > n_full / 2);
        assert_true(table_bytes(tables[0].rows) + table_bytes(tables[1].rows) <= FULL_BYTES);
    }
    for (int i = 0; i < 2; i++)
        stale_rows_deinit(&tables[i]);
    assert_int_equal(budget.used, 0);
}

static void a_bound_too_small_for_a_table_keeps_nothing(void **state)
{
    struct memory_budget budget = { .max = 1 };
    struct stale_rows kept;

    (void)state;
    assert_int_equal(stale_rows_init(&kept, DIM, BOUND, &budget), 0);
    assert_null(kept.rows);
    stale_rows_deinit(&kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_good_for_as_many_clocks_as_the_bound),
        cmocka_unit_test(
            with_a_bound_of_the_job_a_step_that_has_all_its_rows_asks_all_the_same),
        cmocka_unit_test(in_lock_step_nothing_is_reused),
        cmocka_unit_test(after_a_failure_nothing_is_left),
        cmocka_unit_test(at_random_no_row_is_older_than_the_bound),
        cmocka_unit_test(blocks_that_are_reused_and_used_again_are_not_older_than_the_bound),
        cmocka_unit_test(a_pull_outside_training_is_answered_by_the_servers_and_not_counted),
        cmocka_unit_test(only_the_same_bits_have_the_same_place_and_version),
        cmocka_unit_test(a_row_that_is_not_kept_has_no_version),
        cmocka_unit_test(rows_beyond_the_cache_have_no_version),
        cmocka_unit_test(
            tables_share_one_bound_and_keep_new_rows_in_the_places_of_those_that_went),
        cmocka_unit_test(a_bound_too_small_for_a_table_keeps_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
