#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_text(int status)
{
    switch (status) {
    case PS_OK:
        return "ok";
#define X(name, value, text) \
    case name:               \
        return text;
        PS_STATUS_LIST(X)
#undef X
    default:
        return strerror(-status);
    }
}

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
