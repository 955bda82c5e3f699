/* The cache of rows against a trivial model, on a clock of the test's own; and threads that read while others put. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"
#include "worker/libpsd/row_cache.h"

#define MIB (UINT64_C(1) << 20)
#define N_TABLES 3u
#define N_KEYS 4000u
#define DIM_MAX 131u
#define N_LAST 64u
#define TICK UINT64_C(65536) /* the cache's own, ns */

static const uint32_t dims[N_TABLES] = { 16, 1, DIM_MAX };

/* ---- the model ---- */

struct model_row {
    bool is_there, is_present, knows_presence;
    enum codec_id codec;
    uint64_t sent_ns, version;
};

/* What was put of a key: the one that would be there in a cache without a limit, and the last few. */
struct model_key {
    struct model_row best, last[N_LAST];
    uint64_t n_put;
};

struct model {
    struct row_cache *cache;
    struct model_key keys[N_TABLES][N_KEYS];
    uint64_t now_ns, max_age_ns, seed, n_dice, n_fresh_missing, n_others;
};

static uint64_t roll(struct model *t, uint64_t n)
{
    return hash_mix2(t->seed, ++t->n_dice) % n;
}

static float value_of(uint64_t key, uint64_t version, uint32_t k)
{
    return (float)(hash_mix2(hash_mix2(key, version), k) >> 44);
}

static uint64_t key_of(uint64_t number)
{
    return number % 3 ? number : hash_mix(number);
}

static bool is_stored_better(const struct model_row *old, const struct model_row *new)
{
    return old->is_there && old->sent_ns / TICK >= new->sent_ns / TICK &&
           (old->codec == CODEC_FP32 || old->codec == new->codec) &&
           (!new->knows_presence || old->knows_presence);
}

static void put_one(struct model *t, uint32_t table, uint64_t number)
{
    float row[DIM_MAX];
    uint64_t key = key_of(number);
    uint8_t present = roll(t, 2) ? 0xff : 0;
    struct model_key *at = &t->keys[table][number];
    struct model_row new = { .is_there = true,
                             .is_present = present,
                             .knows_presence = roll(t, 2),
                             .codec = roll(t, 4) ? CODEC_FP32 : CODEC_BF16,
                             .sent_ns = (t->now_ns - roll(t, t->max_age_ns)) / TICK * TICK,
                             .version = t->n_dice };
    struct row_cache_rows rows = { .table = table,
                                   .dim = dims[table],
                                   .codec = new.codec,
                                   .n = 1,
                                   .keys = &key,
                                   .rows = row,
                                   .present = new.knows_presence ? &present : NULL };

    for (uint32_t k = 0; k < dims[table]; k++)
        row[k] = value_of(key, new.version, k);
    row_cache_put(t->cache, &rows, new.sent_ns, t->now_ns);
    if (t->now_ns - new.sent_ns > t->max_age_ns)
        return;
    at->last[at->n_put++ % N_LAST] = new;
    if (!is_stored_better(&at->best, &new))
        at->best = new;
}

static bool has_values(const struct row_cache_rows *ask, uint32_t i, uint64_t version)
{
    for (uint32_t k = 0; k < ask->dim; k++)
        if (ask->rows[i * ask->dim + k] != value_of(ask->keys[i], version, k))
            return false;
    return true;
}

/* Its values are those of this row, which may be used. (Two versions of a row of one float may be the same.) */
static bool is_from(const struct model *t, const struct row_cache_rows *ask, uint32_t i,
                    const struct model_row *at, uint64_t oldest_ns)
{
    return at->is_there && has_values(ask, i, at->version) &&
           (at->codec == CODEC_FP32 || at->codec == ask->codec) &&
           t->now_ns - at->sent_ns <= t->max_age_ns && oldest_ns <= at->sent_ns &&
           (!ask->present ||
            (at->knows_presence && (ask->present[i / 8] >> i % 8 & 1) == at->is_present));
}

/* Of a key whose better row was evicted it may be another one. */
static void check_found(struct model *t, const struct row_cache_rows *ask, uint32_t i,
                        uint64_t number, uint64_t oldest_ns)
{
    const struct model_key *key = &t->keys[ask->table][number];
    bool is_last = false;

    if (is_from(t, ask, i, &key->best, oldest_ns))
        return;
    t->n_others++;
    for (uint32_t k = 0; k < N_LAST; k++)
        is_last |= is_from(t, ask, i, &key->last[k], oldest_ns);
    assert_true(is_last);
}

static bool is_to_be_found(const struct model *t, const struct row_cache_rows *ask,
                           uint64_t number)
{
    const struct model_row *at = &t->keys[ask->table][number].best;

    return at->is_there && (at->codec == CODEC_FP32 || at->codec == ask->codec) &&
           t->now_ns - at->sent_ns <= t->max_age_ns && (!ask->present || at->knows_presence);
}

static void read_batch(struct model *t)
{
    uint32_t table = (uint32_t)roll(t, N_TABLES), n = 1 + (uint32_t)roll(t, ROW_CACHE_BATCH);
    uint64_t numbers[ROW_CACHE_BATCH], keys[ROW_CACHE_BATCH], oldest_ns = UINT64_MAX, missing;
    static float rows[ROW_CACHE_BATCH * DIM_MAX];
    uint8_t present[ROW_CACHE_BATCH / 8];
    struct row_cache_rows ask = { .table = table,
                                  .dim = dims[table],
                                  .codec = roll(t, 2) ? CODEC_FP32 : CODEC_BF16,
                                  .n = n,
                                  .keys = keys,
                                  .rows = rows,
                                  .present = roll(t, 2) ? present : NULL };

    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = roll(t, 1 + roll(t, N_KEYS));
        keys[i] = key_of(numbers[i]);
    }
    missing = row_cache_read(t->cache, &ask, 0, n, t->now_ns, &oldest_ns);
    for (uint32_t i = 0; i < n; i++)
        if (!(missing >> i & 1))
            check_found(t, &ask, i, numbers[i], oldest_ns);
        else
            t->n_fresh_missing += is_to_be_found(t, &ask, numbers[i]);
    if (n < 64)
        assert_true(missing >> n == 0);
}

static void run_model(uint64_t max_bytes, uint64_t max_age_ns, uint32_t n_steps,
                      struct row_cache_stats *ret, uint64_t *ret_wrong)
{
    struct model *t = memory_alloc(sizeof *t);

    t->seed = seed_by_the_clock();
    t->now_ns = 50 * max_age_ns;
    t->max_age_ns = max_age_ns;
    t->cache = row_cache_new(max_bytes, max_age_ns, 0);
    assert_non_null(t->cache);
    read_batch(t);
    row_cache_start(t->cache, 16);
    for (uint32_t i = 0; i < n_steps; i++) {
        t->now_ns += roll(t, max_age_ns / N_KEYS);
        for (uint32_t k = (uint32_t)roll(t, 8); k > 0; k--)
            put_one(t, (uint32_t)roll(t, N_TABLES), roll(t, 1 + roll(t, N_KEYS)));
        read_batch(t);
        if (i % 1000 == 0) {
            row_cache_stats(t->cache, ret);
            assert_true(ret->n_bytes <= max_bytes && ret->max_bytes == max_bytes);
        }
    }
    row_cache_stats(t->cache, ret);
    *ret_wrong = t->n_fresh_missing + t->n_others;
    row_cache_free(t->cache);
    free(t);
}

static void test_what_is_found_was_put_last_and_is_not_too_old(void **state)
{
    struct row_cache_stats stats;
    uint64_t n_wrong;

    (void)state;
    run_model(MIB, 1000000000, 60000, &stats, &n_wrong);
    assert_true(stats.n_evicted > 1000); /* it was full */
    assert_true(stats.n_rows > 100);
}

static void test_nothing_is_lost_while_there_is_space(void **state)
{
    struct row_cache_stats stats;
    uint64_t n_wrong;

    (void)state;
    run_model(64 * MIB, 1000000000, 30000, &stats, &n_wrong);
    print_message("%" PRIu64 " not as without a limit, %" PRIu64 " evicted\n", n_wrong,
                  stats.n_evicted);
    assert_true(n_wrong <= 64 * stats.n_evicted); /* by buckets that were full */
    assert_true(stats.n_evicted < stats.n_put / 100);
    assert_int_equal(stats.n_left_out, 0);
}

/* ---- single properties ---- */

static struct row_cache *make(uint64_t max_bytes, uint32_t dim)
{
    struct row_cache *cache = row_cache_new(max_bytes, 1000000000, 0);

    assert_non_null(cache);
    row_cache_start(cache, dim);
    return cache;
}

static bool has(struct row_cache *cache, uint64_t key, uint32_t dim, uint64_t now_ns)
{
    float row[DIM_MAX];
    uint64_t oldest_ns = UINT64_MAX;
    struct row_cache_rows ask = { .dim = dim, .n = 1, .keys = &key, .rows = row };

    return !row_cache_read(cache, &ask, 0, 1, now_ns, &oldest_ns);
}

static void put_at(struct row_cache *cache, uint64_t key, uint32_t dim, uint64_t sent_ns,
                   uint64_t now_ns)
{
    static float row[20000];
    struct row_cache_rows rows = { .dim = dim, .n = 1, .keys = &key, .rows = row };

    row_cache_put(cache, &rows, sent_ns, now_ns);
}

static void test_the_age_counts_from_when_the_row_was_asked_for(void **state)
{
    struct row_cache *cache = make(MIB, 16);
    const uint64_t sent_ns = 700 * TICK, came_ns = sent_ns + 900000000;

    (void)state;
    put_at(cache, 1, 16, sent_ns, came_ns);
    assert_true(has(cache, 1, 16, came_ns));
    assert_true(has(cache, 1, 16, sent_ns + 1000000000));
    assert_false(has(cache, 1, 16, sent_ns + 1000000001));
    put_at(cache, 2, 16, sent_ns, sent_ns + 1000000001); /* too old when it came */
    assert_false(has(cache, 2, 16, sent_ns));
    assert_true(has(cache, 1, 16, sent_ns - 5)); /* another thread's clock is ahead */
    row_cache_free(cache);
}

static void test_rows_that_are_too_long_are_left_out(void **state)
{
    struct row_cache *cache = make(MIB, 16);
    struct row_cache_stats stats;

    (void)state;
    put_at(cache, 1, 20000, 0, 0);
    put_at(cache, 2, 10000, 0, 0); /* too long for the small ring only */
    row_cache_stats(cache, &stats);
    assert_int_equal(stats.n_left_out, 1);
    assert_int_equal(stats.n_rows, 1);
    row_cache_free(cache);
}

/* Keys that come once do not drive out those that come again and again. */
static void test_used_rows_stay(void **state)
{
    struct row_cache *cache = make(MIB, 16);
    struct row_cache_stats stats;
    uint32_t n_there = 0;

    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t key = i % 4 ? 1000000 + i : i / 4 % 2000;

        if (!has(cache, key, 16, 0))
            put_at(cache, key, 16, 0, 0);
    }
    for (uint64_t key = 0; key < 2000; key++)
        n_there += has(cache, key, 16, 0);
    row_cache_stats(cache, &stats);
    printf("%u of 2000 used rows are there, of %" PRIu64 "\n", n_there, stats.n_rows);
    assert_true(n_there > 1900);
    assert_true(stats.n_bytes <= MIB);
    row_cache_free(cache);
}

static void test_no_memory_is_reported(void **state)
{
    (void)state;
    assert_null(row_cache_new(MIB - 1, 1000, 0));
#ifdef PS_FAULTS
    memory_fail_after(0);
    assert_null(row_cache_new(MIB, 1000, 0));
    memory_fail_after(-1);
#endif
}

static void test_counters_are_of_all_threads(void **state)
{
    struct row_cache *cache = make(MIB, 16);
    struct row_cache_stats stats;

    (void)state;
    row_cache_count(cache, 3, 4, 70);
    row_cache_count(cache, 1, 0, 60);
    row_cache_stats(cache, &stats);
    assert_int_equal(stats.n_hits, 4);
    assert_int_equal(stats.n_misses, 4);
    assert_int_equal(stats.oldest_age_ns, 70);
    row_cache_free(cache);
    row_cache_free(NULL);
}

/* ---- threads ---- */

#define RACE_KEYS 20000u

struct race {
    struct row_cache *cache;
    _Atomic bool is_over;
    _Atomic uint64_t n_read, n_torn, n_old;
    uint64_t max_age_ns;
};

/* Its first float pair is the time sent in us; the rest is made of that and the key. */
static void fill_race_row(float *row, uint64_t key, uint32_t dim, uint64_t sent_us)
{
    row[0] = (float)(sent_us >> 20 & 0xfffff);
    row[1] = (float)(sent_us & 0xfffff);
    for (uint32_t k = 2; k < dim; k++)
        row[k] = value_of(key, sent_us & 0xffffffffff, k);
}

static const uint32_t race_dims[2] = { 16, 131 };

static void *put_race(void *arg)
{
    struct race *r = arg;
    uint64_t n = 0, seed = (uintptr_t)&n;
    float row[DIM_MAX];

    while (!atomic_load(&r->is_over)) {
        uint64_t dice = hash_mix2(seed, n++), key = dice % (1 + (dice >> 32) % RACE_KEYS),
                 sent_ns = clock_boot_ns();
        uint32_t table = (uint32_t)(dice >> 60 & 1);
        struct row_cache_rows rows = {
            .table = table, .dim = race_dims[table], .n = 1, .keys = &key, .rows = row
        };

        fill_race_row(row, key, race_dims[table], sent_ns / 1000);
        row_cache_put(r->cache, &rows, sent_ns, sent_ns);
    }
    return NULL;
}

static void check_race_row(struct race *r, const float *row, uint64_t key, uint32_t dim,
                           uint64_t now_ns)
{
    uint64_t mask = 0xffffffffff, now_us = now_ns / 1000,
             sent_us = (uint64_t)row[0] << 20 | (uint64_t)row[1],
             age_us = (now_us - sent_us) & mask;
    float expected[DIM_MAX];

    fill_race_row(expected, key, dim, sent_us);
    if (memcmp(expected, row, dim * sizeof *row) != 0)
        atomic_fetch_add(&r->n_torn, 1);
    if (age_us > r->max_age_ns / 1000 + 1 && age_us < mask / 2)
        atomic_fetch_add(&r->n_old, 1);
    atomic_fetch_add(&r->n_read, 1);
}

static void *read_race(void *arg)
{
    struct race *r = arg;
    uint64_t n = 0, seed = (uintptr_t)&n, keys[26];
    static _Thread_local float rows[26 * DIM_MAX];

    while (!atomic_load(&r->is_over)) {
        uint32_t table = (uint32_t)(n & 1);
        uint64_t oldest_ns = UINT64_MAX, missing, now_ns = clock_boot_ns();
        struct row_cache_rows ask = {
            .table = table, .dim = race_dims[table], .n = 26, .keys = keys, .rows = rows
        };

        for (uint32_t i = 0; i < 26; i++) {
            uint64_t dice = hash_mix2(seed, n++);

            keys[i] = dice % (1 + (dice >> 32) % RACE_KEYS);
        }
        missing = row_cache_read(r->cache, &ask, 0, 26, now_ns, &oldest_ns);
        for (uint32_t i = 0; i < 26; i++)
            if (!(missing >> i & 1))
                check_race_row(r, rows + i * ask.dim, keys[i], ask.dim, now_ns);
    }
    return NULL;
}

static void test_readers_see_whole_rows_while_others_put(void **state)
{
    struct race r = { .max_age_ns = 20000000 };
    const struct timespec pause = { .tv_nsec = 700000000 };
    struct row_cache_stats stats;
    pthread_t threads[4];

    (void)state;
    r.cache = row_cache_new(MIB, r.max_age_ns, clock_boot_ns());
    assert_non_null(r.cache);
    row_cache_start(r.cache, 40);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i % 2 ? put_race : read_race, &r),
                         0);
    nanosleep(&pause, NULL);
    atomic_store(&r.is_over, true);
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    row_cache_stats(r.cache, &stats);
    printf("%" PRIu64 " rows read, %" PRIu64 " put, %" PRIu64 " evicted, %" PRIu64
           " left out\n",
           atomic_load(&r.n_read), stats.n_put, stats.n_evicted, stats.n_left_out);
    assert_true(atomic_load(&r.n_read) > 1000);
    assert_int_equal(atomic_load(&r.n_torn), 0);
    assert_int_equal(atomic_load(&r.n_old), 0);
    row_cache_free(r.cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_found_was_put_last_and_is_not_too_old),
        cmocka_unit_test(test_nothing_is_lost_while_there_is_space),
        cmocka_unit_test(test_the_age_counts_from_when_the_row_was_asked_for),
        cmocka_unit_test(test_rows_that_are_too_long_are_left_out),
        cmocka_unit_test(test_used_rows_stay),
        cmocka_unit_test(test_no_memory_is_reported),
        cmocka_unit_test(test_counters_are_of_all_threads),
        cmocka_unit_test(test_readers_see_whole_rows_while_others_put),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
