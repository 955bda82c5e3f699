/* How the far device ends a test that asks of it what no device allows. Private to it. */
#ifndef TESTS_SUPPORT_FAR_STOP_H
#define TESTS_SUPPORT_FAR_STOP_H

#include "common/base.h"

/* Says why, and does not return. */
void far_stop(const char *fmt, ...) PRINTF_LIKE(1, 2);

#endif
