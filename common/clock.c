#include "common/clock.h"

#include <time.h>

static uint64_t clock_ms(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t clock_unix_ms(void)
{
    return clock_ms(CLOCK_REALTIME);
}

uint64_t clock_mono_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

uint64_t clock_mono_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
