#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory.h"

static void memory_comes_zeroed(void **state)
{
    uint8_t *a = memory_alloc(1000), *b = memory_try_alloc(1000);
    size_t i;

    (void)state;
    assert_non_null(b);
    for (i = 0; i < 1000; i++)
        assert_int_equal(a[i] | b[i], 0);
    free(a);
    free(b);
}

static void nothing_at_all_can_be_asked_for(void **state)
{
    void *block = memory_alloc(0);

    (void)state;
    assert_non_null(block);
    free(block);
}

static void a_grown_block_keeps_its_bytes(void **state)
{
    char *block = memory_try_realloc(NULL, 4);

    (void)state;
    assert_non_null(block);
    memcpy(block, "abc", 4);
    block = memory_try_realloc(block, 100000);
    assert_non_null(block);
    assert_string_equal(block, "abc");
    free(block);
}

static void large_blocks_can_be_written_grown_and_freed(void **state)
{
    static const size_t sizes[] = { 1, 5000, 2u << 20, (2u << 20) + 1, 5u << 20 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        uint8_t *block = memory_try_large(sizes[i]);

        assert_non_null(block);
        memset(block, 0xff, sizes[i]);
        block = memory_try_realloc(block, sizes[i] + 4096);
        assert_non_null(block);
        assert_int_equal(block[sizes[i] - 1], 0xff);
        free(block);
    }
}

static void pages_come_zeroed_and_aligned(void **state)
{
    static const size_t sizes[] = { 1, 4096, 5000, 2u << 20, (2u << 20) + 1, 5u << 20 };
    uint8_t *pages;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(sizes); i++) {
        pages = memory_map(sizes[i]);
        assert_non_null(pages);
        assert_int_equal(pages[0] | pages[sizes[i] / 2] | pages[sizes[i] - 1], 0);
        memset(pages, 0xff, sizes[i]);
        memory_unmap(pages, sizes[i]);
    }
    memory_unmap(NULL, 4096);
}

#ifdef PS_FAULTS
static void the_kth_allocation_and_all_after_it_fail_on_demand(void **state)
{
    void *blocks[3] = { 0 }, *grown;
    long k, i;

    (void)state;
    for (k = 0; k <= 3; k++) {
        memory_fail_after(k);
        for (i = 0; i < 3; i++) {
            blocks[i] = memory_try_alloc(8);
            assert_int_equal(blocks[i] != NULL, i < k);
        }
        memory_fail_after(-1);
        for (i = 0; i < 3; i++)
            free(blocks[i]);
    }
    blocks[0] = memory_try_alloc(8);
    memory_fail_after(0);
    grown = memory_try_realloc(blocks[0], 16);
    assert_null(grown);
    assert_null(memory_try_large(5000));
    assert_null(memory_try_large(5 << 20));
    memory_fail_after(-1);
    free(blocks[0]);
}

static void what_we_size_ourselves_never_fails_on_demand(void **state)
{
    void *block;

    (void)state;
    memory_fail_after(0);
    block = memory_alloc(8);
    memory_fail_after(-1);
    assert_non_null(block);
    free(block);
}

static void *count_failures(void *arg)
{
    long n = 0;

    if (arg)
        memory_exempt_this_thread();
    for (int i = 0; i < 10; i++) {
        void *block = memory_try_alloc(8);

        n += !block;
        free(block);
    }
    return (void *)n;
}

static long failures_of_a_thread(bool is_exempt)
{
    pthread_t thread;
    void *n;

    assert_int_equal(pthread_create(&thread, NULL, count_failures, is_exempt ? &thread : NULL),
                     0);
    assert_int_equal(pthread_join(thread, &n), 0);
    return (long)n;
}

static void some_allocations_of_any_thread_fail_on_demand(void **state)
{
    (void)state;
    memory_fail_anywhere(5, 9);
    assert_int_equal(failures_of_a_thread(true), 0);
    assert_int_equal(failures_of_a_thread(false), 5); /* 5 .. 9 */
    assert_int_equal(failures_of_a_thread(false), 4); /* 10 .. 13 */
    assert_int_equal(memory_n_failed_anywhere(), 9);
    memory_fail_anywhere(0, 100);
    memory_fail_anywhere(-1, 0);
    assert_int_equal(failures_of_a_thread(false), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_zeroed),
        cmocka_unit_test(nothing_at_all_can_be_asked_for),
        cmocka_unit_test(a_grown_block_keeps_its_bytes),
        cmocka_unit_test(large_blocks_can_be_written_grown_and_freed),
        cmocka_unit_test(pages_come_zeroed_and_aligned),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_allocation_and_all_after_it_fail_on_demand),
        cmocka_unit_test(what_we_size_ourselves_never_fails_on_demand),
        cmocka_unit_test(some_allocations_of_any_thread_fail_on_demand),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
