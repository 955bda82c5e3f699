/*
 * As much of cmocka as the kernels' tests use, for machines with a GPU and without cmocka. A test that fails says
 * where, and the next one runs.
 */
#ifndef TESTS_GPU_CMOCKA_H
#define TESTS_GPU_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(test) \
    {                          \
#test, test            \
    }

#define print_message printf

/* Of the test that runs. */
static jmp_buf cmocka_failed;

#define fail_msg(...)                          \
    do {                                       \
        printf("%s:%d: ", __FILE__, __LINE__); \
        printf(__VA_ARGS__);                   \
        printf("\n");                          \
        longjmp(cmocka_failed, 1);             \
    } while (0)

#define assert_true(c)                    \
    do {                                  \
        if (!(c))                         \
            fail_msg("not true: %s", #c); \
    } while (0)

#define assert_non_null(p) assert_true((p) != NULL)

#define assert_int_equal(a, b)                                                     \
    do {                                                                           \
        const long long cmocka_a = (long long)(a), cmocka_b = (long long)(b);      \
                                                                                   \
        if (cmocka_a != cmocka_b)                                                  \
            fail_msg("%s is %lld, expected %s: %lld", #a, cmocka_a, #b, cmocka_b); \
    } while (0)

#define assert_memory_equal(a, b, n)                                            \
    do {                                                                        \
        if (memcmp(a, b, n) != 0)                                               \
            fail_msg("%s and %s differ within %zu bytes", #a, #b, (size_t)(n)); \
    } while (0)

#define cmocka_run_group_tests(tests, open, close) \
    cmocka_run(tests, sizeof(tests) / sizeof((tests)[0]), open, close)

static inline int cmocka_run(const struct CMUnitTest *tests, size_t n, int (*open)(void **),
                             int (*close)(void **))
{
    void *state = NULL;
    int volatile n_failed = 0;

    if (setjmp(cmocka_failed) || open(&state)) {
        printf("[  FAILED  ] before the first test\n");
        return 1;
    }
    for (size_t volatile i = 0; i < n; i++) {
        if (setjmp(cmocka_failed)) {
            printf("[  FAILED  ] %s\n", tests[i].name);
            n_failed++;
            continue;
        }
        tests[i].run(&state);
        printf("[       OK ] %s\n", tests[i].name);
    }
    if (setjmp(cmocka_failed) || close(&state))
        n_failed++;
    printf(n_failed ? "%d failed\n" : "%d failed: all %zu passed\n", n_failed, n);
    return n_failed;
}

#endif
