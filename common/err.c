/* Apart from status.c: what has no use for libuv does without its header. */
#include <stdarg.h>
#include <stdio.h>

#include "common/status.h"

int err_set(struct err *err, int status, const char *fmt, ...)
{
    va_list args;

    if (!err)
        return status;
    err->status = status;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return status;
}
