/*
 * A library for LD_PRELOAD that sends a process SIGTERM at the moment at which it closes its first handle of a signal, behind its
 * loop's last poll: once, if the file PS_LATE_SIGNAL is there, which goes. Without it nothing changes.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

__attribute__((visibility("default"))) void uv_close(uv_handle_t *handle, uv_close_cb done)
{
    const char *path = getenv("PS_LATE_SIGNAL");
    void (*next)(uv_handle_t * handle, uv_close_cb done);

    *(void **)&next = dlsym(RTLD_NEXT, "uv_close");
    if (handle->type == UV_SIGNAL && path && unlink(path) == 0)
        (void)raise(SIGTERM);
    next(handle, done);
}
