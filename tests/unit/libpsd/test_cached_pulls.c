/* Pulls of a reader with a cache, on a node that the test controls. */
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "tests/unit/client/fixture.h"
#include "worker/libpsd/cached_pull.h"
#include "worker/libpsd/psd.h"

#define CACHED "reader=yes cache=1M max-age=1h"
#define N_SECTIONS 40u

struct handle {
    struct fake *f;
    psd *c;
    float rows[N_KEYS * FAKE_DIM];
    psd_rows section;
};

static void url_of(const struct fake *f, char dst[64])
{
    char address[32];

    fake_address(f, address);
    snprintf(dst, 64, "psd://%s/j", address);
}

static float value_of(uint32_t i)
{
    return (float)i + 0.5f;
}

/* A worker has made the table and pushed its rows. */
static void fill(struct fake *f)
{
    char url[64], why[PSD_WHY_MAX];
    float rows[N_KEYS * FAKE_DIM];
    psd_rows section = { .size = sizeof section, .n = N_KEYS, .keys = keys, .rows = rows };
    psd *c;

    url_of(f, url);
    if (psd_open(&c, url, "", why))
        fail_msg("%s", why);
    section.table = (uint32_t)psd_table(c, "emb", "dim=4 optimizer=sgd lr=0.1 init=zero");
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        rows[i] = value_of(i);
    assert_int_equal(psd_push(c, 0, 8, PSD_TICK, &section, 1), 0); /* the fake adds */
    assert_int_equal(psd_leave(c, 10000), 0);
    assert_int_equal(psd_close(c), 0);
}

static void open_on(struct handle *h, const struct fake_plan *plan, const char *options)
{
    char url[64], why[PSD_WHY_MAX];

    *h = (struct handle){ .f = fake_start(plan) };
    fill(h->f);
    url_of(h->f, url);
    if (psd_open(&h->c, url, options, why))
        fail_msg("%s", why);
    assert_int_equal(psd_table(h->c, "emb", NULL), 0);
    h->section =
        (psd_rows){ .size = sizeof h->section, .n = N_KEYS, .keys = keys, .rows = h->rows };
}

static void close_all(struct handle *h)
{
    assert_int_equal(psd_close(h->c), 0);
    fake_stop(h->f);
    fake_free(h->f);
}

static void assert_says(int64_t status, int64_t expected, const char *words)
{
    if (status != expected || !strstr(psd_error(), words))
        fail_msg("%lld \"%s\" is not %lld \"%s\"", (long long)status, psd_error(),
                 (long long)expected, words);
}

static psd_op start(struct handle *h)
{
    psd_op op = 0;

    memset(h->rows, 0, sizeof h->rows);
    if (psd_pull(h->c, 0, &h->section, 1, &op))
        fail_msg("%s", psd_error());
    return op;
}

/* Keys [from, from + n). */
static void pull(struct handle *h, uint32_t from, uint32_t n)
{
    h->section.keys = keys + from;
    h->section.n = n;
    if (psd_wait(h->c, start(h), 10000))
        fail_msg("%s", psd_error());
    for (uint32_t i = 0; i < n * FAKE_DIM; i++)
        assert_true(h->rows[i] == value_of(from * FAKE_DIM + i));
}

static psd_stats stats_of(struct handle *h)
{
    psd_stats stats = { .size = sizeof stats };

    assert_int_equal(psd_get_stats(h->c, &stats), 0);
    return stats;
}

static psd_cache_stats cache_of(struct handle *h)
{
    psd_cache_stats stats = { .size = sizeof stats };

    assert_int_equal(psd_get_cache_stats(h->c, &stats), 0);
    return stats;
}

static void test_words_are_checked(void **state)
{
    static const struct {
        const char *options, *words;
    } all[] = {
        { "cache=1M max-age=1s", "it is for reader=yes" },
        { "reader=yes cache=1M", "it needs max-age=TIME" },
        { "reader=yes cache=1M max-age=0", "it needs max-age=TIME" },
        { "reader=yes max-age=1s", "it is the bound of cache=BYTES" },
        { "reader=yes cache=1000 max-age=1s", "expected 1M to 1024G" },
        { "reader=yes cache=2048G max_age=1s", "expected 1M to 1024G" },
        { "reader=yes cache=1M max_age=25h", "expected 1ms to 24h" },
        { "reader=yes cache=much max_age=1s", "is not a size such as" },
        { "reader=yes cache=1M max-age=old", "is not a time such as" },
    };
    psd *c;

    (void)state;
    for (uint32_t i = 0; i < COUNT_OF(all); i++)
        assert_says(psd_open(&c, "psd://127.0.0.1:1/j", all[i].options, NULL), PSD_ESETTING,
                    all[i].words);
}

static void test_only_missing_keys_are_pulled(void **state)
{
    struct handle h;
    psd_cache_stats cache;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, CACHED);
    pull(&h, 2, 3);
    assert_int_equal(stats_of(&h).rows_pulled, 3);
    pull(&h, 0, 8);
    assert_int_equal(stats_of(&h).rows_pulled, 8);
    pull(&h, 0, 8);
    pull(&h, 1, 7);
    assert_int_equal(stats_of(&h).pulls, 2);
    cache = cache_of(&h);
    assert_int_equal(cache.misses, 8);
    assert_int_equal(cache.hits, 3 + 8 + 7);
    assert_int_equal(cache.puts, 8);
    assert_int_equal(cache.rows, 8);
    assert_int_equal(cache.bytes_max, 1 << 20);
    assert_true(cache.bytes <= cache.bytes_max && cache.bytes > 8 * 4 * FAKE_DIM);
    assert_int_equal(cache.max_age_ns, UINT64_C(3600000000000));
    assert_true(cache.oldest_age_ns < cache.max_age_ns);
    close_all(&h);
}

static void test_many_sections_share_a_pull(void **state)
{
    struct handle h;
    psd_rows sections[N_SECTIONS];
    float rows[N_SECTIONS][N_KEYS * FAKE_DIM];
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, CACHED);
    pull(&h, 4, 2);
    for (uint32_t round = 0; round < 2; round++) {
        memset(rows, 0, sizeof rows);
        for (uint32_t i = 0; i < N_SECTIONS; i++) {
            sections[i] = h.section;
            sections[i].keys = keys + i % 5;
            sections[i].n = N_KEYS - 5;
            sections[i].rows = rows[i];
        }
        assert_int_equal(psd_pull(h.c, 0, sections, N_SECTIONS, &op), 0);
        assert_int_equal(psd_wait(h.c, op, 10000), 0);
        for (uint32_t i = 0; i < N_SECTIONS; i++)
            for (uint32_t k = 0; k < (N_KEYS - 5) * FAKE_DIM; k++)
                assert_true(rows[i][k] == value_of(i % 5 * FAKE_DIM + k));
    }
    assert_int_equal(stats_of(&h).pulls, 2);
    close_all(&h);
}

static void test_a_hit_ends_once(void **state)
{
    struct handle h;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, CACHED);
    pull(&h, 0, N_KEYS);
    op = start(&h);
    assert_true(h.rows[0] == value_of(0)); /* already */
    assert_int_equal(psd_wait(h.c, op, 0), 0);
    assert_says(psd_wait(h.c, op, 0), -EINVAL, "no pull under way has number");
    assert_says(psd_wait(h.c, op + (1 << 16), 0), -EINVAL, "no pull under way has number");
    assert_says(psd_wait(h.c, 65535, 0), -EINVAL, "no pull under way has number");
    op = start(&h);
    assert_int_equal(psd_cancel(h.c, op), 0);
    assert_says(psd_wait(h.c, op, 0), -ECANCELED, "cancelled");
    op = start(&h);
    assert_int_equal(psd_cancel(h.c, 0), 0);
    assert_says(psd_wait(h.c, op, 0), -ECANCELED, "cancelled");
    assert_int_equal(psd_cancel(h.c, op), 0);
    close_all(&h);
}

static void test_misuse_is_refused_as_without_a_cache(void **state)
{
    struct handle h;
    static const uint64_t twice[2] = { 5, 5 };
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, CACHED);
    pull(&h, 0, N_KEYS);
    h.section.table = 1;
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), -EINVAL, "no table 1");
    h.section.table = 0;
    h.section.codec = 77;
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), -EINVAL, "no codec 77");
    h.section.codec = 0;
    h.section.rows = NULL;
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), -EINVAL, "no array of rows");
    h.section.rows = h.rows;
    h.section.keys = twice;
    h.section.n = 2;
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), -EINVAL, "must ascend");
    assert_says(psd_push(h.c, 0, 1, 0, &h.section, 1), -EINVAL, "reader");
    h.section.n = 0;
    op = start(&h); /* nothing is missing of nothing */
    assert_int_equal(psd_wait(h.c, op, 0), 0);
    close_all(&h);
}

static void test_hits_come_through_the_descriptor(void **state)
{
    struct handle h;
    struct pollfd fd = { .events = POLLIN };
    psd_op op;
    uint32_t n = 0;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, CACHED);
    pull(&h, 0, 6);
    for (uint32_t i = 0; i < 3; i++)
        (void)start(&h); /* before the descriptor is asked for */
    fd.fd = psd_fd(h.c);
    for (uint32_t i = 0; i < 700; i++) /* more than end without the servers */
        (void)start(&h);
    while (n < 703) {
        assert_int_equal(poll(&fd, 1, 10000), 1);
        while ((op = psd_next(h.c)) > 0) {
            assert_int_equal(psd_wait(h.c, op, 0), 0);
            n++;
        }
        assert_int_equal(op, 0);
    }
    assert_int_equal(psd_next(h.c), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    close_all(&h);
}

static void test_what_this_handle_has_dropped_is_not_handed_out(void **state)
{
    struct handle h;
    psd_op op;

    (void)state;
    open_on(&h,
            &(struct fake_plan){ .n_shards = 2,
                                 .admin = "{\"tables\":1,\"rows\":40,\"bytes\":500}" },
            CACHED);
    pull(&h, 0, N_KEYS);
    assert_int_equal(psd_drop(h.c, "k", NULL, 10000), 0); /* another job's */
    pull(&h, 0, N_KEYS);
    assert_int_equal(psd_drop(h.c, "j", NULL, 10000), 0);
    assert_says(psd_pull(h.c, 0, &h.section, 1, &op), PSD_ENOTABLE, "table 0 was dropped");
    close_all(&h);
}

/* What is in the cache is handed out without the servers; what is not has the pull's own error. */
static void test_rows_outlive_their_node(void **state)
{
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 },
            CACHED " pull-timeout=100ms give-up=200ms");
    pull(&h, 0, 5);
    fake_stop(h.f);
    pull(&h, 0, 5);
    pull(&h, 2, 3);
    h.section.n = 4;
    assert_true(psd_wait(h.c, start(&h), 20000) < 0); /* keys 2 .. 5: the last is missing */
    assert_true(psd_error()[0]);
    pull(&h, 0, 5);
    assert_int_equal(psd_close(h.c), 0);
    fake_free(h.f);
}

/* Rows of the cache are found at first, and are too old when the pull is waited for. */
static void test_what_became_too_old_meanwhile_is_pulled_again(void **state)
{
    const struct timespec age = { .tv_nsec = 210000000 };
    struct handle h;
    uint64_t before, n_rows;
    psd_cache_stats cache;
    psd_op op;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, "reader=yes cache=1M max-age=200ms");
    do { /* on a machine that is not too slow to find them */
        pull(&h, 0, 4);
        before = stats_of(&h).pulls;
        n_rows = stats_of(&h).rows_pulled + 1;
        cache = cache_of(&h);
        h.section.n = 5;
        op = start(&h);
        if (stats_of(&h).rows_pulled != n_rows)
            assert_int_equal(psd_wait(h.c, op, 10000), 0);
    } while (stats_of(&h).rows_pulled != n_rows);
    assert_int_equal(stats_of(&h).pulls, before + 1);
    nanosleep(&age, NULL);
    assert_int_equal(psd_wait(h.c, op, 10000), 0);
    for (uint32_t i = 0; i < 5 * FAKE_DIM; i++)
        assert_true(h.rows[i] == value_of(i));
    assert_int_equal(stats_of(&h).pulls, before + 2);
    assert_int_equal(cache_of(&h).hits, cache.hits); /* what was found was not handed out */
    assert_int_equal(cache_of(&h).misses, cache.misses + 5);
    assert_true(cache_of(&h).oldest_age_ns <= 200000000);
    close_all(&h);
}

/* The thread has lost its core between the look at the clock and the rows. */
static void test_a_lookup_that_took_too_long_is_no_hit(void **state)
{
    const struct timespec age = { .tv_nsec = 210000000 };
    const uint64_t began_ns = clock_boot_ns(), bound_ns = 200000000;
    struct cached_lookup lookup;
    struct handle h;

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 2 }, "reader=yes cache=1M max-age=200ms");
    pull(&h, 0, 5);
    nanosleep(&age, NULL);
    cached_lookup_start(
        &lookup, h.c, &(struct ps_pull_section){ .n_keys = 5, .keys = keys, .dst = h.rows }, 1);
    lookup.now_ns = began_ns;
    assert_false(cached_lookup_next(&lookup));
    lookup.now_ns = lookup.oldest_ns + bound_ns - 1;
    assert_true(cached_lookup_took_too_long(&lookup));
    lookup.oldest_ns = clock_boot_ns() + bound_ns;
    lookup.now_ns = lookup.oldest_ns + bound_ns - 1;
    assert_false(cached_lookup_took_too_long(&lookup));
    close_all(&h);
}

static void test_a_handle_without_a_cache_has_no_counts(void **state)
{
    struct handle h;
    psd_cache_stats stats = { .size = 2 };

    (void)state;
    open_on(&h, &(struct fake_plan){ .n_shards = 1 }, "reader=yes");
    pull(&h, 0, 5);
    pull(&h, 0, 5);
    assert_int_equal(stats_of(&h).rows_pulled, 10);
    assert_int_equal(cache_of(&h).bytes_max, 0);
    assert_says(psd_get_cache_stats(h.c, &stats), -EINVAL, "size");
    assert_says(psd_get_cache_stats(h.c, NULL), -EINVAL, "no struct");
    close_all(&h);
}

#ifdef PS_FAULTS
static void test_each_allocation_may_fail(void **state)
{
    char url[64];
    struct handle h = { 0 };
    int status = -1;
    long n = 0;

    (void)state;
    h.f = fake_start(&(struct fake_plan){ .n_shards = 2 });
    fill(h.f);
    url_of(h.f, url);
    h.section = (psd_rows){ .size = sizeof h.section, .n = 5, .keys = keys, .rows = h.rows };
    for (; status; n++) {
        psd_op op;

        memory_fail_after(-1);
        status = psd_open(&h.c, url, CACHED, NULL);
        if (!status && psd_table(h.c, "emb", NULL))
            fail_msg("%s", psd_error());
        memory_fail_after(n);
        h.section.n = 3;
        status = psd_pull(h.c, 0, &h.section, 1, &op);
        if (!status)
            status = psd_wait(h.c, op, 10000);
        h.section.n = 5;
        if (!status)
            status = psd_pull(h.c, 0, &h.section, 1, &op);
        if (!status)
            status = psd_wait(h.c, op, 10000);
        memory_fail_after(-1);
        if (status)
            assert_says(status, -ENOMEM, "");
        assert_int_equal(psd_close(h.c), 0);
    }
    memory_fail_after(-1);
    assert_true(n > 3);
    for (uint32_t i = 0; i < 5 * FAKE_DIM; i++)
        assert_true(h.rows[i] == value_of(i));
    fake_stop(h.f);
    fake_free(h.f);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_are_checked),
        cmocka_unit_test(test_only_missing_keys_are_pulled),
        cmocka_unit_test(test_many_sections_share_a_pull),
        cmocka_unit_test(test_a_hit_ends_once),
        cmocka_unit_test(test_misuse_is_refused_as_without_a_cache),
        cmocka_unit_test(test_hits_come_through_the_descriptor),
        cmocka_unit_test(test_what_this_handle_has_dropped_is_not_handed_out),
        cmocka_unit_test(test_rows_outlive_their_node),
        cmocka_unit_test(test_what_became_too_old_meanwhile_is_pulled_again),
        cmocka_unit_test(test_a_lookup_that_took_too_long_is_no_hit),
        cmocka_unit_test(test_a_handle_without_a_cache_has_no_counts),
#ifdef PS_FAULTS
        cmocka_unit_test(test_each_allocation_may_fail),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
