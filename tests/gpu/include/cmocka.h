/* For machines with a GPU and no cmocka: as much of it as tests/unit/cuda uses there. */
#ifndef GPU_CMOCKA_H
#define GPU_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

enum { GPU_CMOCKA_FAILED = 1, GPU_CMOCKA_SKIPPED };

/* Where a test that fails or skips goes back to. */
static jmp_buf gpu_cmocka_out;

#define cmocka_unit_test(function) \
    {                              \
#function, function        \
    }
#define print_message(...) ((void)printf(__VA_ARGS__))
#define skip() longjmp(gpu_cmocka_out, GPU_CMOCKA_SKIPPED)
#define fail_msg(...)                               \
    do {                                            \
        printf("%s:%d: ", __FILE__, __LINE__);      \
        printf(__VA_ARGS__);                        \
        printf("\n");                               \
        longjmp(gpu_cmocka_out, GPU_CMOCKA_FAILED); \
    } while (0)
#define assert_true(what)                  \
    do {                                   \
        if (!(what))                       \
            fail_msg("not so: %s", #what); \
    } while (0)
#define assert_false(what) assert_true(!(what))
#define assert_null(what) assert_true(!(what))
#define assert_non_null(what) assert_true(what)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, n) assert_true(!memcmp(a, b, n))
#define assert_string_equal(a, b) assert_true(!strcmp(a, b))

/* setup, teardown: NULL, or of all tests, which share a state. */
static inline int gpu_cmocka_run(const struct CMUnitTest *tests, size_t n,
                                 int (*setup)(void **state), int (*teardown)(void **state))
{
    static void *state;
    volatile int n_failed = 0;

    if (setjmp(gpu_cmocka_out) || (setup && setup(&state))) {
        printf("[   FAILED ] before the first test\n");
        return 1;
    }

    for (volatile size_t i = 0; i < n; i++) {
        const int how = setjmp(gpu_cmocka_out);

        if (how == 0)
            tests[i].run(&state);
        n_failed += how == GPU_CMOCKA_FAILED;
        printf("[ %s ] %s\n",
               how == 0                    ? "      OK"
               : how == GPU_CMOCKA_SKIPPED ? " SKIPPED"
                                           : "  FAILED",
               tests[i].name);
    }
    if (setjmp(gpu_cmocka_out) || (teardown && teardown(&state)))
        n_failed++;
    return n_failed;
}

#define cmocka_run_group_tests(tests, setup, teardown) \
    gpu_cmocka_run(tests, sizeof(tests) / sizeof(tests)[0], setup, teardown)

#endif
