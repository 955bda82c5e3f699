#include "tests/unit/data/cache_bench.h"

static void a_cache_truncated_anywhere_is_reported_and_written_anew(void **state)
{
    struct crash_inode *inode;
    struct cache_bench b;
    size_t n_bytes;

    (void)state;
    cache_bench_new(&b, "", 9);
    run_same(&b);
    n_bytes = crash_files_at(&b.disk, cache_of(&b, 0))->n_bytes;
    for (size_t i = 0; i <= n_bytes / 64; i++) {
        size_t at = i * 64 < n_bytes ? i * 64 : n_bytes - 1;

        inode = crash_files_at(&b.disk, cache_of(&b, 0));
        assert_int_equal(inode->n_bytes, n_bytes);
        inode->n_bytes = at;
        b.n_notices = 0;
        assert_in_range(run_same(&b), 50, 120);
        assert_int_equal(b.n_notices, 1);
        assert_non_null(strstr(b.notice, "data cache: cache/part-0."));
        assert_non_null(strstr(b.notice, "it is written anew"));
        assert_int_equal(run_same(&b), 120);
        assert_int_equal(b.n_notices, 1);
    }
    cache_bench_free(&b);
}

static void a_flipped_bit_anywhere_is_reported_and_written_anew(void **state)
{
    struct cache_bench b;
    size_t n_bytes;

    (void)state;
    cache_bench_new(&b, "|", 9);
    b.options.shuffle_rows = 10;
    run_same(&b);
    n_bytes = crash_files_at(&b.disk, cache_of(&b, 0))->n_bytes;
    for (size_t at = 0; at < n_bytes; at += 1 + at / 40) {
        crash_files_at(&b.disk, cache_of(&b, 0))->bytes[at] ^= (uint8_t)(1 << at % 8);
        b.n_notices = 0;
        assert_in_range(run_same(&b), 50, 120);
        assert_int_equal(b.n_notices, 1);
        assert_int_equal(run_same(&b), 120);
        assert_int_equal(b.n_notices, 1);
    }
    cache_bench_free(&b);
}

/* Each of a pass's operations on the cache in turn fails, alone or as the last: a full disk, a
 * broken one. The batches come all the same. */
static void a_cache_whose_files_fail_costs_no_row(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        bool done = false;

        for (long k = 0; !done; k++) {
            struct outcome plain, cached;
            struct cache_bench b;

            cache_bench_new(&b, "", 9);
            if (kind & 1)
                run_same(&b); /* the failure meets a reader */
            plain = run_plain(&b);
            crash_files_heal(&b.disk);
            b.disk.fail_at = k;
            b.disk.torn = b.disk.dies = kind & 2;
            cached = run(&b.options);
            done = b.disk.n_ops <= k;
            assert_same(&plain, &cached);
            assert_true(done || b.n_notices > 0 || b.disk.n_ops > k);
            crash_files_heal(&b.disk);
            run_same(&b);
            assert_int_equal(run_same(&b), 120);
            cache_bench_free(&b);
        }
    }
}

static void a_full_disk_is_reported_in_a_sentence(void **state)
{
    struct cache_bench b;

    (void)state;
    cache_bench_new(&b, "", 0);
    b.disk.fail_at = 4; /* open, mkdir, list, create, write */
    b.disk.dies = true;
    run(&b.options);
    assert_int_equal(b.n_notices, 3); /* file 0: not written; file 1: not read, not written */
    assert_non_null(strstr(b.notice, "reading goes on without it"));
    crash_files_heal(&b.disk);
    cache_bench_free(&b);
}

#ifdef PS_FAULTS
static void every_failed_allocation_ends_the_pass_with_a_status_or_costs_the_cache(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        int status = -1;

        for (long k = 0; status != 0; k++) {
            struct outcome out;
            struct cache_bench b;

            cache_bench_new(&b, "|", 9);
            if (again)
                run_same(&b);
            b.options.shuffle_rows = 10;
            memory_fail_after(k);
            out = run(&b.options);
            memory_fail_after(-1);
            status = out.status;
            assert_true(status == 0 || status == -ENOMEM);
            run_same(&b);
            assert_int_equal(run_same(&b), 120);
            cache_bench_free(&b);
        }
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_truncated_anywhere_is_reported_and_written_anew),
        cmocka_unit_test(a_flipped_bit_anywhere_is_reported_and_written_anew),
        cmocka_unit_test(a_cache_whose_files_fail_costs_no_row),
        cmocka_unit_test(a_full_disk_is_reported_in_a_sentence),
#ifdef PS_FAULTS
        cmocka_unit_test(
            every_failed_allocation_ends_the_pass_with_a_status_or_costs_the_cache),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
