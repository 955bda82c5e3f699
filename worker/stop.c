#include "worker/stop.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"

#define CLOSE_SIGNAL SIGUSR2 /* from stop_close() to the thread */

struct stop {
    pthread_t thread;
    atomic_bool graceful, asked;
    sigset_t signals;
};

static void *wait_for_signals(void *arg)
{
    struct stop *s = arg;
    int signal;

    while (sigwait(&s->signals, &signal) == 0 && signal != CLOSE_SIGNAL) {
        if (!atomic_load(&s->graceful) || atomic_exchange(&s->asked, true))
            _exit(128 + signal);
        log_info("stopping after this step; once more ends the process at once");
    }
    return NULL;
}

struct stop *stop_start(void)
{
    struct stop *s = mem_alloc(sizeof *s);

    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGINT);
    sigaddset(&s->signals, SIGTERM);
    sigaddset(&s->signals, CLOSE_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &s->signals, NULL);
    atomic_init(&s->graceful, false);
    atomic_init(&s->asked, false);
    if (pthread_create(&s->thread, NULL, wait_for_signals, s) != 0) {
        free(s);
        return NULL;
    }
    return s;
}

void stop_grace(struct stop *s)
{
    atomic_store(&s->graceful, true);
}

bool stop_asked(const struct stop *s)
{
    return s && atomic_load(&s->asked);
}

void stop_close(struct stop *s)
{
    if (!s)
        return;
    pthread_kill(s->thread, CLOSE_SIGNAL);
    pthread_join(s->thread, NULL);
    free(s);
}
