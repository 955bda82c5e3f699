/* The time: of the wall clock, for people, and of the monotonic clock, for intervals. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

uint64_t clock_unix_ms(void);
uint64_t clock_mono_ms(void);
uint64_t clock_mono_ns(void);

/* As clock_mono_ns(), and goes on while the machine sleeps. */
uint64_t clock_boot_ns(void);

/* 2026-11-27T18:40:12Z, as the log has it */
#define CLOCK_TEXT_MAX 24
void clock_utc_text(uint64_t unix_ms, char ret[CLOCK_TEXT_MAX]);

#endif
