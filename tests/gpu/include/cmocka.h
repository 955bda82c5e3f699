/*
 * As much of cmocka as the tests use that run on a GPU, for machines without cmocka. A test that fails says where, and
 * the next one runs.
 */
#ifndef TESTS_GPU_INCLUDE_CMOCKA_H
#define TESTS_GPU_INCLUDE_CMOCKA_H

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

/* Of the test that runs, and where it goes when it has failed or will not run. */
enum { CMOCKA_FAILED = 1, CMOCKA_SKIPPED };
__attribute__((weak)) jmp_buf cmocka_out; /* one for all files of a program */

#define fail_msg(...)                          \
    do {                                       \
        printf("%s:%d: ", __FILE__, __LINE__); \
        printf(__VA_ARGS__);                   \
        printf("\n");                          \
        longjmp(cmocka_out, CMOCKA_FAILED);    \
    } while (0)

#define assert_true(c)                    \
    do {                                  \
        if (!(c))                         \
            fail_msg("not true: %s", #c); \
    } while (0)

#define skip() longjmp(cmocka_out, CMOCKA_SKIPPED)

#define assert_false(c) assert_true(!(c))
#define assert_null(p) assert_true((p) == NULL)
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
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

#define assert_memory_not_equal(a, b, n)                                       \
    do {                                                                       \
        if (memcmp(a, b, n) == 0)                                              \
            fail_msg("%s and %s are the same %zu bytes", #a, #b, (size_t)(n)); \
    } while (0)

#define cmocka_run_group_tests(tests, open, close) \
    cmocka_run(tests, sizeof(tests) / sizeof((tests)[0]), open, close)

/* How it ended; 0: well. */
static inline int cmocka_try(int (*run)(void **), void (*test)(void **), void **state)
{
    const int how = setjmp(cmocka_out);

    if (how)
        return how;
    if (run)
        return run(state) ? CMOCKA_FAILED : 0;
    if (test)
        test(state);
    return 0;
}

static inline int cmocka_run(const struct CMUnitTest *tests, size_t n, int (*open)(void **),
                             int (*close)(void **))
{
    static const char *const words[] = { "      OK", " FAILED ", " SKIPPED" };
    void *state = NULL;
    int n_failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0); /* a crash leaves what was said before */
    if (cmocka_try(open, NULL, &state)) {
        printf("[  FAILED  ] before the first test\n");
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        const int how = cmocka_try(NULL, tests[i].run, &state);

        printf("[ %s ] %s\n", words[how], tests[i].name);
        n_failed += how == CMOCKA_FAILED;
    }
    n_failed += cmocka_try(close, NULL, &state) != 0;
    printf("%d of %zu failed\n", n_failed, n);
    return n_failed;
}

#endif
