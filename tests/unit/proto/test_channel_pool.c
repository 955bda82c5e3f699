#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/channel_loop.h"

static void a_buffer_given_back_is_the_next_one_taken(void **state)
{
    struct channel_pool p = { 0 };
    struct bytes a = { 0 }, b = { 0 };
    uint8_t *bytes;

    (void)state;
    assert_int_equal(channel_pool_acquire(&p, 100000, &a), 0);
    bytes = a.bytes;
    channel_pool_release(&p, &a);
    assert_null(a.bytes);
    assert_int_equal(a.cap_bytes, 0);
    assert_int_equal(channel_pool_acquire(&p, 60000, &b), 0);
    assert_ptr_equal(b.bytes, bytes);
    assert_int_equal(bytes_len(&b), 0);
    assert_true(p.n_made == 1);
    channel_pool_release(&p, &b);
    channel_pool_deinit(&p);
}

static void a_buffer_far_too_large_is_left_for_others(void **state)
{
    struct channel_pool p = { 0 };
    struct bytes a = { 0 }, b = { 0 };

    (void)state;
    assert_int_equal(channel_pool_acquire(&p, 1u << 20, &a), 0);
    channel_pool_release(&p, &a);
    assert_int_equal(channel_pool_acquire(&p, 1000, &b), 0);
    assert_int_equal(b.cap_bytes, 4096);
    channel_pool_release(&p, &b);
    channel_pool_deinit(&p);
}

static void keeps_no_more_buffers_than_it_has_lent(void **state)
{
    struct channel_pool p = { 0 };
    struct bytes a = { 0 }, foreign = { 0 }, none = { 0 };

    (void)state;
    assert_non_null(bytes_reserve(&foreign, 8192));
    channel_pool_release(&p, &foreign);
    assert_null(foreign.bytes);
    channel_pool_release(&p, &none);
    assert_true(p.kept_bytes == 0);
    assert_int_equal(channel_pool_acquire(&p, 8192, &a), 0);
    assert_non_null(bytes_reserve(&foreign, 8192));
    channel_pool_release(&p, &foreign); /* one is as good as another */
    assert_true(p.kept_bytes == 8192);
    channel_pool_release(&p, &a);
    assert_null(a.bytes);
    assert_true(p.kept_bytes == 8192);
    channel_pool_deinit(&p);
}

static void never_keeps_more_than_its_bound(void **state)
{
    enum { N = 12 };
    struct channel_pool p = { 0 };
    struct bytes bufs[N] = { 0 }, huge = { 0 };

    (void)state;
    for (int i = 0; i < N; i++)
        assert_int_equal(channel_pool_acquire(&p, 10u << 20, &bufs[i]), 0);
    for (int i = 0; i < N; i++) {
        channel_pool_release(&p, &bufs[i]);
        assert_null(bufs[i].bytes);
        assert_true(p.kept_bytes <= CHANNEL_POOL_KEEP_BYTES);
    }
    assert_true(p.kept_bytes == 6 * ((size_t)10 << 20));
    assert_int_equal(channel_pool_acquire(&p, (size_t)300 << 20, &huge),
                     0); /* beyond the classes */
    channel_pool_release(&p, &huge);
    assert_null(huge.bytes);
    channel_pool_deinit(&p);
}

static void a_sweep_frees_what_nobody_has_needed_since_the_last(void **state)
{
    struct channel_pool p = { 0 };
    struct bytes a = { 0 }, b = { 0 };

    (void)state;
    assert_int_equal(channel_pool_acquire(&p, 65536, &a), 0);
    assert_int_equal(channel_pool_acquire(&p, 65536, &b), 0);
    channel_pool_release(&p, &a);
    channel_pool_release(&p, &b);
    channel_pool_sweep(&p); /* both have just come */
    assert_true(p.kept_bytes == 131072);
    assert_int_equal(channel_pool_acquire(&p, 65536, &a), 0); /* one is enough */
    channel_pool_release(&p, &a);
    channel_pool_sweep(&p);
    assert_true(p.kept_bytes == 65536);
    channel_pool_sweep(&p);
    assert_true(p.kept_bytes == 0);
}

static void a_buffer_grows_with_what_is_in_it_and_is_not_kept(void **state)
{
    struct channel_pool p = { 0 };
    struct bytes b = { 0 };

    (void)state;
    assert_int_equal(channel_pool_acquire(&p, 1u << 20, &b), 0);
    memset(b.bytes, 7, b.cap_bytes);
    bytes_commit(&b, b.cap_bytes);
    for (size_t n = 2u << 20; n <= 16u << 20; n *= 2)
        assert_int_equal(channel_pool_grow(&p, &b, n), 0);
    assert_true(b.cap_bytes == 16u << 20 && bytes_len(&b) == 1u << 20);
    for (size_t i = 0; i < 1u << 20; i++)
        assert_true(b.bytes[i] == 7);
    channel_pool_release(&p, &b);
    assert_true(p.kept_bytes == 0);
#ifdef PS_FAULTS
    assert_int_equal(channel_pool_acquire(&p, 1u << 20, &b), 0);
    memory_fail_after(0);
    assert_int_equal(channel_pool_grow(&p, &b, 2u << 20), -ENOMEM);
    memory_fail_after(-1);
    assert_true(b.cap_bytes == 1u << 20);
    channel_pool_release(&p, &b);
    assert_true(p.kept_bytes == 1u << 20);
#endif
    channel_pool_deinit(&p);
}

static void a_random_run_gives_memory_and_counts_it(void **state)
{
    enum { N = 64 };
    uint64_t seed = 20261120, dice;
    struct channel_pool p = { 0 };
    struct bytes bufs[N] = { 0 };
    size_t asked;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 20000; round++) {
        struct bytes *b;

        dice = hash_mix2(seed, round);
        b = &bufs[dice % N];
        if (b->bytes) {
            assert_int_equal(b->bytes[0], b - bufs); /* nobody else has it */
            channel_pool_release(&p, b);
        } else {
            asked = (size_t)1 << (dice >> 8) % 22;
            asked += (dice >> 16) % asked;
            assert_int_equal(channel_pool_acquire(&p, asked, b), 0);
            assert_true(b->cap_bytes >= asked && b->cap_bytes <= 8192 + 3 * asked);
            b->bytes[0] = (uint8_t)(b - bufs);
            b->bytes[asked - 1] = b->bytes[0];
        }
        if (dice % 1000 == 0)
            channel_pool_sweep(&p);
    }
    for (int i = 0; i < N; i++)
        channel_pool_release(&p, &bufs[i]);
    for (int i = 0; i < 2; i++)
        channel_pool_sweep(&p);
    assert_true(p.kept_bytes == 0);
}

#ifdef PS_FAULTS
static void without_memory_it_says_so_and_still_lends_what_it_has(void **state)
{
    struct channel_pool p = { 0 };
    struct bytes a = { 0 }, b = { 0 };

    (void)state;
    assert_int_equal(channel_pool_acquire(&p, 65536, &a), 0);
    channel_pool_release(&p, &a);
    memory_fail_after(0);
    assert_int_equal(channel_pool_acquire(&p, 65536, &a), 0);
    assert_int_equal(channel_pool_acquire(&p, 65536, &b), -ENOMEM);
    memory_fail_after(-1);
    assert_null(b.bytes);
    channel_pool_release(&p, &a);
    channel_pool_deinit(&p);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_given_back_is_the_next_one_taken),
        cmocka_unit_test(a_buffer_far_too_large_is_left_for_others),
        cmocka_unit_test(keeps_no_more_buffers_than_it_has_lent),
        cmocka_unit_test(never_keeps_more_than_its_bound),
        cmocka_unit_test(a_sweep_frees_what_nobody_has_needed_since_the_last),
        cmocka_unit_test(a_buffer_grows_with_what_is_in_it_and_is_not_kept),
        cmocka_unit_test(a_random_run_gives_memory_and_counts_it),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_it_says_so_and_still_lends_what_it_has),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
