/*
 * Signals of a thread that waits. Their handlers run while it sleeps, in signals_sleep(), and at no other moment of the
 * wait: so a handler that runs on this thread ends its sleep, and none is missed between two sleeps. (A signal that is
 * sent to the process while this thread is awake may be handled on another thread: a wait is to be mostly asleep.)
 *
 * Faults are not held back, nor what the C library needs. SIGPIPE is, also asleep: writes of a library raise none.
 */
#ifndef WORKER_CLIENT_SIGNALS_H
#define WORKER_CLIENT_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base.h"

/* Zeroed at first. */
struct signals {
    bool are_held;
    sigset_t before, asleep; /* masks of the thread: of its own, and while it sleeps */
    int cancel_state;
    bool had_pipe; /* signals_have_pipe(), before */
};

/* True if a SIGPIPE waits that the thread had blocked, with this mask: it is the caller's own. */
bool signals_have_pipe(const sigset_t *mask);

/* From here on they wait; nor is the thread cancelled. Nothing happens if they are held already. */
void signals_hold(struct signals *s);

/* All is as it was; those that have come are handled here. Nothing happens if they are not held. */
void signals_release(struct signals *s);

/* Until the descriptor (-1: none) can be read, or for timeout_ns (UINT64_MAX: for ever). 1: it can; 0; -EINTR behind a
 * signal. s: NULL, or not held: the mask stays as it is. */
int signals_sleep(const struct signals *s, int fd, uint64_t timeout_ns) MUST_CHECK;

#endif
