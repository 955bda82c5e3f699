#include "worker/client/signals.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>

#define SECOND_NS UINT64_C(1000000000)

static void block_all(sigset_t *set)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT };

    sigfillset(set);
    for (size_t i = 0; i < COUNT_OF(faults); i++)
        sigdelset(set, faults[i]);
}

bool signals_have_pipe(const sigset_t *mask)
{
    sigset_t waiting;

    return sigismember(mask, SIGPIPE) == 1 && sigpending(&waiting) == 0 &&
           sigismember(&waiting, SIGPIPE) == 1;
}

void signals_hold(struct signals *s)
{
    sigset_t all;

    if (s->are_held)
        return;
    block_all(&all);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &s->cancel_state);
    pthread_sigmask(SIG_BLOCK, &all, &s->before);
    s->had_pipe = signals_have_pipe(&s->before);
    s->asleep = s->before;
    sigaddset(&s->asleep, SIGPIPE);
    s->are_held = true;
}

void signals_release(struct signals *s)
{
    if (!s->are_held)
        return;
    s->are_held = false;
    pthread_sigmask(SIG_SETMASK, &s->before, NULL);
    pthread_setcancelstate(s->cancel_state, NULL);
}

int signals_sleep(const struct signals *s, int fd, uint64_t timeout_ns)
{
    struct pollfd polled = { .fd = fd, .events = POLLIN };
    const struct timespec timeout = { .tv_sec = (time_t)(timeout_ns / SECOND_NS),
                                      .tv_nsec = (long)(timeout_ns % SECOND_NS) };
    const sigset_t *mask = s && s->are_held ? &s->asleep : NULL;

    int n = ppoll(&polled, 1, timeout_ns == UINT64_MAX ? NULL : &timeout, mask);

    return n < 0 && errno == EINTR ? -EINTR : n > 0;
}
