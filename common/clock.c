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

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t clock_mono_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t clock_boot_ns(void)
{
    return clock_ns(CLOCK_BOOTTIME);
}

void clock_utc_text(uint64_t unix_ms, char ret[CLOCK_TEXT_MAX])
{
    const time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;

    ret[0] = '\0';
    if (gmtime_r(&seconds, &utc))
        (void)strftime(ret, CLOCK_TEXT_MAX, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
