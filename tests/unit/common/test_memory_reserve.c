#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "common/memory_reserve.h"

#define PAGE ((size_t)4096)
#define HUGE ((size_t)2 << 20)
#define N_THREADS 4u
#define N_TAKES 64u

static void make(uint64_t n_bytes)
{
    struct err err = { 0 };

    assert_int_equal(memory_reserve_init(n_bytes, &err), 0);
}

static bool is_resident(void *pages, size_t n_bytes)
{
    unsigned char there[4 * HUGE / PAGE];
    size_t n = 0;

    assert_true(n_bytes / PAGE <= COUNT_OF(there));
    assert_int_equal(mincore(pages, n_bytes, there), 0);
    for (size_t i = 0; i < n_bytes / PAGE; i++)
        n += there[i] & 1;
    return n == n_bytes / PAGE;
}

static bool is_zero(const uint8_t *bytes, size_t n_bytes)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, n_bytes - 1) == 0;
}

static void what_is_taken_is_there_and_zeroed(void **state)
{
    uint8_t *pages;

    (void)state;
    make(4 * HUGE);
    assert_int_equal(memory_reserve_left(), 4 * HUGE);
    pages = memory_reserve_acquire(4 * HUGE);
    assert_non_null(pages);
    assert_int_equal((uintptr_t)pages % HUGE, 0);
    assert_true(is_resident(pages, 4 * HUGE));
    assert_true(is_zero(pages, 4 * HUGE));
    assert_int_equal(memory_reserve_left(), 0);
    memory_reserve_deinit();
    munmap(pages, 4 * HUGE);
}

static void parts_lie_side_by_side_until_nothing_fits(void **state)
{
    uint8_t *a, *b;

    (void)state;
    make(HUGE - 1); /* whole huge pages, always */
    a = memory_reserve_acquire(PAGE + 1);
    b = memory_reserve_acquire(1);
    assert_non_null(a);
    assert_ptr_equal(b, a + 2 * PAGE);
    assert_int_equal(memory_reserve_left(), HUGE - 3 * PAGE);
    assert_null(memory_reserve_acquire(HUGE - 3 * PAGE + 1));
    assert_null(memory_reserve_acquire(SIZE_MAX - 2 * PAGE));
    assert_int_equal(memory_reserve_left(), HUGE - 3 * PAGE);
    assert_ptr_equal(memory_reserve_acquire(HUGE - 3 * PAGE), a + 3 * PAGE);
    memory_reserve_deinit();
    munmap(a, HUGE);
}

static void the_rest_goes_and_what_is_taken_stays(void **state)
{
    unsigned char there;
    uint8_t *taken;

    (void)state;
    make(2 * HUGE);
    taken = memory_reserve_acquire(HUGE);
    assert_non_null(taken);
    memory_reserve_deinit();
    memset(taken, 1, HUGE);
    assert_int_equal(mincore(taken + HUGE, PAGE, &there), -1);
    assert_int_equal(errno, ENOMEM);
    assert_null(memory_reserve_acquire(1));
    assert_int_equal(memory_reserve_left(), 0);
    munmap(taken, HUGE);
}

static void none_is_none(void **state)
{
    (void)state;
    make(0);
    assert_null(memory_reserve_acquire(1));
    assert_int_equal(memory_reserve_left(), 0);
    memory_reserve_deinit();
}

static void more_than_the_machine_has_is_reported(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(memory_reserve_init(UINT64_C(1) << 50, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "1048576.0 GiB of memory were to be reserved, but "));
    assert_null(memory_reserve_acquire(1));
}

static void *take_and_mark(void *arg)
{
    uint8_t **pages = arg;

    for (uint32_t i = 0; i < N_TAKES; i++) {
        pages[i] = memory_reserve_acquire(PAGE);
        if (pages[i])
            memset(pages[i], (int)(1 + (uintptr_t)&pages[i] % 251), PAGE);
    }
    return NULL;
}

static void no_two_threads_are_given_the_same(void **state)
{
    static uint8_t *pages[N_THREADS][N_TAKES];
    pthread_t threads[N_THREADS];
    uint8_t *first = NULL;

    (void)state;
    make(N_THREADS * N_TAKES * PAGE);
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_mark, pages[i]), 0);
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(memory_reserve_left() % PAGE, 0);
    for (uint32_t i = 0; i < N_THREADS; i++)
        for (uint32_t k = 0; k < N_TAKES; k++) {
            assert_non_null(pages[i][k]);
            assert_int_equal(pages[i][k][0], 1 + (uintptr_t)&pages[i][k] % 251);
            assert_int_equal(memcmp(pages[i][k], pages[i][k] + 1, PAGE - 1), 0);
            first = !first || pages[i][k] < first ? pages[i][k] : first;
        }
    memory_reserve_deinit();
    munmap(first, N_THREADS * N_TAKES * PAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_taken_is_there_and_zeroed),
        cmocka_unit_test(parts_lie_side_by_side_until_nothing_fits),
        cmocka_unit_test(the_rest_goes_and_what_is_taken_stays),
        cmocka_unit_test(none_is_none),
        cmocka_unit_test(more_than_the_machine_has_is_reported),
        cmocka_unit_test(no_two_threads_are_given_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
