/* What time it is: on the wall's clock, for people, and on the monotonic one, for intervals. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

uint64_t clock_unix_ms(void);
uint64_t clock_mono_ms(void);
uint64_t clock_mono_ns(void);

#endif
