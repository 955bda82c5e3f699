/*
 * A condition that threads wait for under a lock, as uv_cond_t, and a wait that a signal can end.
 *
 * uv_cond_timedwait() sleeps on when a signal's handler has run. A library's caller must get its thread back then, so
 * an interruptible wakeup sleeps in the kernel's futex(2) itself, with a time-out: that returns EINTR behind any
 * handler, with SA_RESTART or without. A signal that comes between the caller's last look and the kernel's sleep is
 * not seen.
 */
#ifndef WORKER_CLIENT_WAKEUP_H
#define WORKER_CLIENT_WAKEUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "common/base.h"

struct wakeup {
    bool is_interruptible;         /* never changes */
    uv_cond_t cond;                /* if it is not */
    _Atomic uint32_t n, n_waiting; /* if it is: counts signals; threads in wakeup_wait() */
};

int wakeup_init(struct wakeup *w, bool is_interruptible) MUST_CHECK;
void wakeup_deinit(struct wakeup *w);

/* Under the lock, which it gives back while it sleeps: until somebody signals, or for timeout_ns, or for no reason.
 * -EINTR behind a signal, if it is interruptible; else 0. */
int wakeup_wait(struct wakeup *w, uv_mutex_t *lock, uint64_t timeout_ns) MUST_CHECK;

/* What is waited for has been changed under the lock, which may be released by now. `signal` wakes one thread. */
void wakeup_signal(struct wakeup *w);
void wakeup_broadcast(struct wakeup *w);

#endif
