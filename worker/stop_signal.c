#include "worker/stop_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log_line.h"
#include "common/memory.h"

#define START_ENDS_MS 2000 /* more than a farewell may take (ps_close()) */
#define CLOSE_BYTE 0       /* from stop_signal_close(); else the signal's number */

/* Where the handler writes. A handler has no argument, and blocking the signals instead would not reach threads
 * that a library has started before main (OpenBLAS does). */
static volatile sig_atomic_t wake_fd = -1;

struct stop_signal {
    pthread_t thread;
    atomic_bool graceful, asked;
    atomic_int early;
    int pipe[2];
    void (*reload)(void *arg); /* NULL: SIGHUP is not caught, or asks for a stop */
    void *reload_arg;
    bool is_hangup_caught;
};

static void on_signal(int signal)
{
    unsigned char byte = (unsigned char)signal;
    int saved_errno = errno;

    if (write((int)wake_fd, &byte, 1) < 0)
        _exit(128 + signal);
    errno = saved_errno;
}

/* The start gets a while to say goodbye to the servers. False: it has ended. */
static bool end_start(struct stop_signal *s, int signal)
{
    struct pollfd next = { .fd = s->pipe[0], .events = POLLIN };
    unsigned char byte = (unsigned char)signal;

    atomic_store(&s->early, signal);
    while (poll(&next, 1, START_ENDS_MS) == 1 && read(s->pipe[0], &byte, 1) == 1 &&
           byte == SIGHUP)
        ;
    if (byte == CLOSE_BYTE)
        return false;
    _exit(128 + (byte == SIGHUP ? signal : byte));
}

static void *wait_for_signals(void *arg)
{
    struct stop_signal *s = arg;
    unsigned char byte;

    while (read(s->pipe[0], &byte, 1) == 1 && byte != CLOSE_BYTE) {
        if (byte == SIGHUP && s->reload) {
            s->reload(s->reload_arg);
            continue;
        }
        if (!atomic_load(&s->graceful) && !end_start(s, byte))
            return NULL;
        if (atomic_exchange(&s->asked, true)) {
            if (byte != SIGHUP)
                _exit(128 + byte);
            continue; /* of a terminal that is gone, the kernel and the shell both say it */
        }
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
    atomic_init(&s->early, 0);
    if (pipe2(s->pipe, O_CLOEXEC) != 0) {
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

static bool has_terminal(void)
{
    const int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

void stop_signal_on_reload(struct stop_signal *s, void (*reload)(void *arg), void *arg)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    if (has_terminal())
        return;
    s->reload = reload;
    s->reload_arg = arg;
    sigaction(SIGHUP, &action, NULL); /* behind what its handler needs */
}

void stop_signal_on_hangup(struct stop_signal *s)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, before;

    if (sigaction(SIGHUP, NULL, &before) || before.sa_handler == SIG_IGN)
        return;
    s->is_hangup_caught = true;
    sigaction(SIGHUP, &action, NULL);
}

void stop_signal_grace(struct stop_signal *s)
{
    atomic_store(&s->graceful, true);
}

int stop_signal_early(const struct stop_signal *s)
{
    return s ? atomic_load(&s->early) : 0;
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
    if (s->reload || s->is_hangup_caught)
        signal(SIGHUP, SIG_IGN); /* one that comes now is too late, and no reason to end */
    if (write(s->pipe[1], &byte, 1) == 1)
        pthread_join(s->thread, NULL);
    close(s->pipe[0]);
    close(s->pipe[1]);
    free(s);
}
