/* The time: of the wall clock, for people, and of the monotonic clock, for intervals. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

uint64_t clock_unix_ms(void);
uint64_t clock_mono_ms(void);
uint64_t clock_mono_ns(void);

#endif
