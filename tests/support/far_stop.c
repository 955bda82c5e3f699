#include "tests/support/far_stop.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void far_stop(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fputs("far device: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}
