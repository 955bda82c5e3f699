#include "worker/client/wakeup.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/memory.h"

#define SECOND_NS UINT64_C(1000000000)
#define SLEEP_NS_MAX (3600 * SECOND_NS) /* libuv adds the time-out to the clock: no overflow */
#define BLIND_NS UINT64_C(1000000)      /* after which a thread looks that nobody can wake */

int wakeup_init(struct wakeup *w, bool is_interruptible)
{
    *w = (struct wakeup){ .is_interruptible = is_interruptible, .fd = -1 };
    if (!is_interruptible)
        return uv_cond_init(&w->cond);
    w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE);
    return 0;
}

void wakeup_deinit(struct wakeup *w)
{
    if (!w->is_interruptible)
        uv_cond_destroy(&w->cond);
    else if (w->fd >= 0)
        close(w->fd);
}

int wakeup_sleep(int fd, uint64_t timeout_ns, const struct signals *signals)
{
    int status =
        signals_sleep(signals, fd, fd < 0 && timeout_ns > BLIND_NS ? BLIND_NS : timeout_ns);
    eventfd_t ignored;

    if (status <= 0)
        return status;
    (void)eventfd_read(fd, &ignored); /* only then: it may be another thread's */
    return 0;
}

void wakeup_write(int fd)
{
    if (fd >= 0)
        (void)eventfd_write(fd, 1);
}

int wakeup_wait(struct wakeup *w, uv_mutex_t *lock, uint64_t timeout_ns,
                struct signals *signals)
{
    uint64_t sleep_ns = timeout_ns < SLEEP_NS_MAX ? timeout_ns : SLEEP_NS_MAX;
    int status;

    if (!w->is_interruptible) {
        uv_cond_timedwait(&w->cond, lock, sleep_ns);
        return 0;
    }
    signals_hold(signals);
    atomic_fetch_add(&w->n_waiting, 1);
    uv_mutex_unlock(lock);
    status = wakeup_sleep(w->fd, sleep_ns, signals);
    uv_mutex_lock(lock);
    atomic_fetch_sub(&w->n_waiting, 1);
    return status;
}

/* Each read takes one away. */
static void wake(struct wakeup *w, uint32_t n_threads)
{
    uint32_t n_waiting = atomic_load(&w->n_waiting),
             n = n_threads < n_waiting ? n_threads : n_waiting;

    if (n && w->fd >= 0)
        (void)eventfd_write(w->fd, n);
}

void wakeup_signal(struct wakeup *w)
{
    if (w->is_interruptible)
        wake(w, 1);
    else
        uv_cond_signal(&w->cond);
}

void wakeup_broadcast(struct wakeup *w)
{
    if (w->is_interruptible)
        wake(w, UINT32_MAX);
    else
        uv_cond_broadcast(&w->cond);
}

/* ---- one descriptor for each thread that sleeps ---- */

int wakeup_fds_take(struct wakeup_fds *f)
{
    int *more, fd;

    if (f->n_idle)
        return f->fds[--f->n_idle];
    more = memory_try_realloc(f->fds, (f->n + 1) * sizeof *more);
    if (!more)
        return -1;
    f->fds = more;
    fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    f->n += fd >= 0;
    return fd;
}

void wakeup_fds_give(struct wakeup_fds *f, int fd)
{
    if (fd >= 0)
        f->fds[f->n_idle++] = fd;
}

void wakeup_fds_deinit(struct wakeup_fds *f)
{
    while (f->n_idle)
        close(f->fds[--f->n_idle]);
    free(f->fds);
}
