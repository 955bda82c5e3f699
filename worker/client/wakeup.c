#include "worker/client/wakeup.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
#define SLEEP_NS_MAX (3600 * SECOND_NS) /* libuv adds the time-out to the clock: no overflow */

int wakeup_init(struct wakeup *w, bool is_interruptible)
{
    *w = (struct wakeup){ .is_interruptible = is_interruptible };
    return is_interruptible ? 0 : uv_cond_init(&w->cond);
}

void wakeup_deinit(struct wakeup *w)
{
    if (!w->is_interruptible)
        uv_cond_destroy(&w->cond);
}

/* As long as nobody has signalled since `seen`. */
static int sleep_interruptibly(struct wakeup *w, uint32_t seen, uint64_t timeout_ns)
{
    const struct timespec timeout = { .tv_sec = (time_t)(timeout_ns / SECOND_NS),
                                      .tv_nsec = (long)(timeout_ns % SECOND_NS) };

    return syscall(SYS_futex, &w->n, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0) == -1 &&
                   errno == EINTR
               ? -EINTR
               : 0;
}

int wakeup_wait(struct wakeup *w, uv_mutex_t *lock, uint64_t timeout_ns)
{
    uint64_t sleep_ns = timeout_ns < SLEEP_NS_MAX ? timeout_ns : SLEEP_NS_MAX;
    uint32_t seen;
    int status;

    if (!w->is_interruptible) {
        uv_cond_timedwait(&w->cond, lock, sleep_ns);
        return 0;
    }
    seen = atomic_load(&w->n);
    atomic_fetch_add(&w->n_waiting, 1);
    uv_mutex_unlock(lock);
    status = sleep_interruptibly(w, seen, sleep_ns);
    uv_mutex_lock(lock);
    atomic_fetch_sub(&w->n_waiting, 1);
    return status;
}

static void wake(struct wakeup *w, int n_threads)
{
    atomic_fetch_add(&w->n, 1);
    if (atomic_load(&w->n_waiting))
        (void)syscall(SYS_futex, &w->n, FUTEX_WAKE_PRIVATE, n_threads, NULL, NULL, 0);
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
        wake(w, INT_MAX);
    else
        uv_cond_broadcast(&w->cond);
}
