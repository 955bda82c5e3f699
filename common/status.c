#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

/* libuv's codes that are no errno (UV_EOF and UV_EAI_*), and -errno where libc has no text.
 * uv_strerror() would allocate for a number it does not know. */
static const char *uv_text(int status)
{
    switch (status) {
#define XX(name, text) \
    case UV_##name:    \
        return text;
        UV_ERRNO_MAP(XX)
#undef XX
    default:
        return "unknown status";
    }
}

const char *status_text(int status)
{
    const char *text = NULL;

    switch (status) {
    case PS_OK:
        return "ok";
#define X(name, value, text) \
    case name:               \
        return text;
        PS_STATUS_LIST(X)
#undef X
    default:
        /* A status may come from a peer: any int at all. */
        if (status < 0 && status > -4096)
            text = strerrordesc_np(-status);
        return text ? text : uv_text(status);
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
