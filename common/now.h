/* What time it is, in milliseconds: on the wall's clock, for people, and on the monotonic one. */
#ifndef COMMON_NOW_H
#define COMMON_NOW_H

#include <stdint.h>

uint64_t now_unix_ms(void);
uint64_t now_mono_ms(void);

#endif
