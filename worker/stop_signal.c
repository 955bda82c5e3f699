#include "worker/stop_signal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log_line.h"
#include "common/memory.h"

#define CLOSE_BYTE 0 /* from stop_signal_close(); else the signal's number */

/* Where the handler writes. A handler has no argument, and blocking the signals instead would not reach threads
 * that a library has started before main (OpenBLAS does). */
static volatile sig_atomic_t wake_fd = -1;

struct stop_signal {
    pthread_t thread;
    atomic_bool graceful, asked;
    int pipe[2];
};

static void on_signal(int signal)
{
    unsigned char byte = (unsigned char)signal;
    int saved_errno = errno;

    if (write((int)wake_fd, &byte, 1) < 0)
        _exit(128 + signal);
    errno = saved_errno;
}

static void *wait_for_signals(void *arg)
{
    struct stop_signal *s = arg;
    unsigned char byte;

    while (read(s->pipe[0], &byte, 1) == 1 && byte != CLOSE_BYTE) {
        if (!atomic_load(&s->graceful) || atomic_exchange(&s->asked, true))
            _exit(128 + byte);
        log_line_info("stopping after this step; once more ends the process at once");
    }
    return NULL;
}

struct stop_signal *stop_signal_start(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct stop_signal *s = memory_alloc(sizeof *s);

    atomic_init(&s->graceful, false);
    atomic_init(&s->asked, false);
    if (pipe(s->pipe) != 0) {
        free(s);
        return NULL;
    }
    if (pthread_create(&s->thread, NULL, wait_for_signals, s) != 0) {
        close(s->pipe[0]);
        close(s->pipe[1]);
        free(s);
        return NULL;
    }
    wake_fd = s->pipe[1];
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return s;
}

void stop_signal_grace(struct stop_signal *s)
{
    atomic_store(&s->graceful, true);
}

bool stop_signal_asked(const struct stop_signal *s)
{
    return s && atomic_load(&s->asked);
}

void stop_signal_close(struct stop_signal *s)
{
    const unsigned char byte = CLOSE_BYTE;

    if (!s)
        return;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (write(s->pipe[1], &byte, 1) == 1)
        pthread_join(s->thread, NULL);
    close(s->pipe[0]);
    close(s->pipe[1]);
    free(s);
}
