/*
 * A condition that threads wait for under a lock, as uv_cond_t, and a wait that a signal can end.
 *
 * uv_cond_timedwait() sleeps on when a signal's handler has run. A library's caller must get its thread back then, so
 * an interruptible wakeup sleeps at an eventfd, in signals_sleep(). Where there is none, for the process has too many
 * descriptors, it looks once in a millisecond.
 */
#ifndef WORKER_CLIENT_WAKEUP_H
#define WORKER_CLIENT_WAKEUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "common/base.h"
#include "worker/client/signals.h"

struct wakeup {
    bool is_interruptible; /* never changes */
    uv_cond_t cond;        /* if it is not */
    int fd;                /* if it is; -1: there is none */
    _Atomic uint32_t n_waiting;
};

/* An interruptible one cannot fail. */
int wakeup_init(struct wakeup *w, bool is_interruptible) MUST_CHECK;
void wakeup_deinit(struct wakeup *w);

/* Under the lock, which it gives back while it sleeps: until somebody signals, or for timeout_ns, or for no reason.
 * -EINTR behind a signal, if it is interruptible: `signals` are held then, until the caller has released the lock and
 * them; else 0. */
int wakeup_wait(struct wakeup *w, uv_mutex_t *lock, uint64_t timeout_ns,
                struct signals *signals) MUST_CHECK;

/* What is waited for has been changed under the lock, which may be released by now. `signal` wakes one thread. */
void wakeup_signal(struct wakeup *w);
void wakeup_broadcast(struct wakeup *w);

/* ---- one descriptor for each thread that sleeps, so that just that one is woken ----
 *
 * Under the caller's lock, but for wakeup_sleep() and wakeup_write(). A descriptor that was given back is taken again,
 * and closed at the end: who is late wakes another thread for no reason. */

struct wakeup_fds {
    int *fds; /* owned: fds[0 .. n_idle) are nobody's; there is space for all n */
    uint32_t n, n_idle;
};

/* -1: there is none, and the thread looks once in a millisecond. */
int wakeup_fds_take(struct wakeup_fds *f);
void wakeup_fds_give(struct wakeup_fds *f, int fd);
void wakeup_fds_deinit(struct wakeup_fds *f);

/* As wakeup_wait(), without a lock. */
int wakeup_sleep(int fd, uint64_t timeout_ns, const struct signals *signals) MUST_CHECK;
void wakeup_write(int fd);

#endif
