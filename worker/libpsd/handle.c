/* The way into each function and out of it: errors, children of fork(), threads that wait for each other. */
#include "worker/libpsd/handle.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STRUCT_BYTES_MAX 4096u

/* psd_error() is each thread's own. */
static _Thread_local struct err last_error;

/* ---- errors ---- */

const char *psd_error(void)
{
    return last_error.text;
}

const char *psd_strerror(int status)
{
    return status_text(status);
}

const char *psd_version(void)
{
    return PS_VERSION;
}

int handle_fail(const struct err *err)
{
    last_error.status = err->status;
    snprintf(last_error.text, sizeof last_error.text, "%s",
             err->text[0] ? err->text : status_text(err->status));
    return err->status;
}

/* ---- in and out ---- */

static bool is_child(const psd *c)
{
    return c->is_parents ? *(const volatile uint32_t *)c->is_parents == 0 : c->pid != getpid();
}

int handle_check_process(const psd *c, struct err *err)
{
    if (!c)
        return err_set(err, -EINVAL, "no handle: it is NULL");
    if (is_child(c))
        return err_set(err, -ECHILD,
                       "this handle is another process's: a child of fork() opens its own");
    return 0;
}

int handle_enter(psd *c, struct err *err)
{
    int status = handle_check_process(c, err);

    if (status)
        return status;
    err->text[0] = '\0';
    atomic_fetch_add(&c->n_users, 1);
    if (!atomic_load(&c->is_closing))
        return 0;
    atomic_fetch_sub(&c->n_users, 1);
    return err_set(err, -ECANCELED, "the handle is being closed");
}

int64_t handle_leave_with(psd *c, int64_t result, const struct err *err)
{
    if (result < 0) {
        struct err failure = *err;

        failure.status = (int)result;
        (void)handle_fail(&failure);
    }
    atomic_fetch_sub(&c->n_users, 1);
    return result;
}

int handle_leave(psd *c, int status, const struct err *err)
{
    return (int)handle_leave_with(c, status, err);
}

int handle_pass(psd *c, struct handle_gate *gate, uint64_t until_ns, struct err *err)
{
    struct signals signals = { 0 };
    int status = 0;

    uv_mutex_lock(&c->lock);
    while (gate->is_busy && !status) {
        uint64_t now = uv_hrtime();

        if (atomic_load(&c->is_closing))
            status = err_set(err, -ECANCELED, "the handle is being closed");
        else if (now >= until_ns)
            status = err_set(err, -EAGAIN, "another thread is in psd_push() or psd_table()");
        else if (wakeup_wait(&gate->freed, &c->lock, until_ns - now, &signals) && gate->is_busy)
            status = err_set(err, -EINTR, "a signal ended the wait");
    }
    if (!status)
        gate->is_busy = true;
    uv_mutex_unlock(&c->lock);
    signals_release(&signals);
    return status;
}

void handle_pass_back(psd *c, struct handle_gate *gate)
{
    uv_mutex_lock(&c->lock);
    gate->is_busy = false;
    wakeup_signal(&gate->freed);
    uv_mutex_unlock(&c->lock);
}

uint64_t handle_until(int timeout_ms, uint64_t default_ms)
{
    uint64_t ms = timeout_ms < 0 ? default_ms : (uint64_t)timeout_ms;

    if (timeout_ms == 0)
        return 0;
    return ms ? uv_hrtime() + ms * UINT64_C(1000000) : HANDLE_FOREVER;
}

int handle_timed(int status, struct err *err)
{
    return status == -EAGAIN ? err_set(err, -ETIMEDOUT, "not within the time that was given")
                             : status;
}

int handle_fill(void *dst, const void *src, size_t n_bytes, struct err *err)
{
    uint32_t size;

    if (!dst)
        return err_set(err, -EINVAL, "no struct to fill");
    memcpy(&size, dst, sizeof size);
    if (size < 2 * sizeof size || size > STRUCT_BYTES_MAX)
        return err_set(err, -EINVAL, "the struct's size is %u: set it to its sizeof", size);
    if (size > n_bytes) /* of a later version: what this one does not know is 0 */
        memset((char *)dst + n_bytes, 0, size - n_bytes);
    else
        n_bytes = size;
    memcpy((char *)dst + sizeof size, (const char *)src + sizeof size, n_bytes - sizeof size);
    return 0;
}
