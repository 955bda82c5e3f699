/* Where a random run begins: PS_SEED repeats one. What it is is printed, so that a failure can be run again. */
#ifndef TESTS_SUPPORT_SEED_H
#define TESTS_SUPPORT_SEED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static inline uint64_t seed_of_run(uint64_t otherwise)
{
    const char *text = getenv("PS_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : otherwise;

    print_message("PS_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Another one each time. */
static inline uint64_t seed_by_the_clock(void)
{
    return seed_of_run((uint64_t)time(NULL));
}

#endif
