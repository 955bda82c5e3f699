#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/bytes.h"
#include "common/memory.h"

static void append(struct bytes *b, const void *src, size_t n_bytes)
{
    uint8_t *space = bytes_reserve(b, n_bytes);

    assert_non_null(space);
    if (n_bytes)
        memcpy(space, src, n_bytes);
    bytes_commit(b, n_bytes);
}

static void what_was_appended_is_consumed_in_the_same_order(void **state)
{
    enum { N_STEPS = 5000, N_MAX = 700 };
    struct bytes b = { 0 };
    uint8_t chunk[N_MAX];
    uint8_t written = 0, read = 0;
    size_t i, step, n;

    (void)state;
    srand(7);
    for (step = 0; step < N_STEPS; step++) {
        n = (size_t)rand() % N_MAX;
        for (i = 0; i < n; i++)
            chunk[i] = written++;
        append(&b, chunk, n);
        n = (size_t)rand() % (bytes_len(&b) + 1);
        for (i = 0; i < n; i++)
            assert_int_equal(bytes_front(&b)[i], read++);
        bytes_consume(&b, n);
    }
    assert_int_equal((uint8_t)(written - read), bytes_len(&b) & 0xff);
    bytes_deinit(&b);
}

static void space_that_was_consumed_is_reused(void **state)
{
    struct bytes b = { 0 };
    uint8_t chunk[1000] = { 0 };
    size_t cap;
    int i;

    (void)state;
    append(&b, chunk, sizeof chunk);
    cap = b.cap_bytes;
    for (i = 0; i < 1000; i++) {
        append(&b, chunk, sizeof chunk);
        bytes_consume(&b, sizeof chunk);
    }
    assert_int_equal(b.cap_bytes, cap);
    bytes_deinit(&b);
}

static void an_emptied_buffer_starts_at_its_front_again(void **state)
{
    struct bytes b = { 0 };

    (void)state;
    append(&b, "abc", 3);
    bytes_consume(&b, 3);
    assert_int_equal(b.start, 0);
    assert_int_equal(b.end, 0);
    bytes_deinit(&b);
    assert_null(b.bytes);
    bytes_deinit(&b);
}

static void a_size_that_cannot_be_is_refused_and_changes_nothing(void **state)
{
    struct bytes b = { 0 };

    (void)state;
    append(&b, "abc", 3);
    assert_null(bytes_reserve(&b, SIZE_MAX));
    assert_null(bytes_reserve(&b, SIZE_MAX - 2));
    assert_null(bytes_reserve(&b, SIZE_MAX / 2));
    assert_int_equal(bytes_len(&b), 3);
    assert_memory_equal(bytes_front(&b), "abc", 3);
    bytes_deinit(&b);
}

#ifdef PS_FAULTS
static void without_memory_the_bytes_stay_as_they_were(void **state)
{
    struct bytes b = { 0 };

    (void)state;
    memory_fail_after(0);
    assert_null(bytes_reserve(&b, 1));
    memory_fail_after(-1);
    append(&b, "abcdef", 6);
    bytes_consume(&b, 2);
    memory_fail_after(0);
    assert_null(bytes_reserve(&b, 100000));
    memory_fail_after(-1);
    assert_int_equal(bytes_len(&b), 4);
    assert_memory_equal(bytes_front(&b), "cdef", 4);
    append(&b, "gh", 2);
    assert_memory_equal(bytes_front(&b), "cdefgh", 6);
    bytes_deinit(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_appended_is_consumed_in_the_same_order),
        cmocka_unit_test(space_that_was_consumed_is_reused),
        cmocka_unit_test(an_emptied_buffer_starts_at_its_front_again),
        cmocka_unit_test(a_size_that_cannot_be_is_refused_and_changes_nothing),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_the_bytes_stay_as_they_were),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
