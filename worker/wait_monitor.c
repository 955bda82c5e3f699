#include "worker/wait_monitor.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "worker/job_peers.h"
#include "worker/setup.h"

#define CHECK_MS 100u
#define GIVE_UP_MS 500u /* of a wait, once a stop is asked for */
#define AFTER_MS 500u   /* until the servers' reports have the end of a wait */
#define MS UINT64_C(1000000)
#define BEFORE_THE_STOP "the stop waits until the servers have what was pushed"

struct wait_monitor {
    const struct settings *s; /* borrowed, as the next two */
    struct param_store *store;
    const struct stop_signal *stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closing; /* under the lock */

    /* The thread's own. */
    uint64_t logged_ns; /* length of the current wait at its last line; 0: none yet */
    uint32_t after_ms;  /* since the end of a wait that was logged; 0: none */
    bool gave_up;       /* a stop has ended a wait */
    struct job_peers_dead dead;
};

static uint64_t waiting_ns(const struct wait_monitor *w)
{
    struct ps_stats stats;

    w->store->ops->stats(w->store, &stats);
    return stats.waiting_ns;
}

static void log_wait(struct wait_monitor *w, const char *what, uint64_t ns)
{
    char why[JOB_PEERS_WHY_MAX];

    job_peers_why(&(struct job_peers){ w->s, w->store }, why);
    log_line_info("%s, %.1f s so far: %s", what, (double)ns * 1e-9, why);
}

/* Repeated, as the thread that pulls may be between two waits. */
static void give_up(struct wait_monitor *w, uint64_t ns)
{
    if (!w->store->ops->cancel)
        return;
    if (!w->gave_up)
        log_wait(w, "the stop ends a wait", ns);
    w->gave_up = true;
    w->store->ops->cancel(w->store);
}

static void log_dead(struct wait_monitor *w)
{
    w->after_ms = 0;
    job_peers_log_dead(&(struct job_peers){ w->s, w->store }, &w->dead);
}

static void check(struct wait_monitor *w)
{
    const uint64_t ns = waiting_ns(w), every_ns = w->s->progress_every_ms * MS;

    if (ns >= GIVE_UP_MS * MS && stop_signal_asked(w->stop))
        give_up(w, ns);
    if (ns >= every_ns && (ns < w->logged_ns || ns - w->logged_ns >= every_ns)) {
        w->logged_ns = ns;
        log_wait(w, w->gave_up ? BEFORE_THE_STOP : "waiting", ns);
    } else if (ns < w->logged_ns) {
        w->logged_ns = 0;
        w->after_ms = CHECK_MS;
    }
    if (w->after_ms && (w->after_ms += CHECK_MS) > AFTER_MS)
        log_dead(w);
}

static struct timespec in_a_while(void)
{
    const uint64_t until_ms = clock_mono_ms() + CHECK_MS;

    return (struct timespec){ (time_t)(until_ms / 1000), (long)(until_ms % 1000 * 1000000) };
}

static void *run(void *arg)
{
    struct wait_monitor *w = arg;
    struct timespec until;

    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        until = in_a_while();
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (w->closing)
            break;
        pthread_mutex_unlock(&w->lock);
        check(w);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    if (w->after_ms)
        log_dead(w);
    return NULL;
}

static void init_locks(struct wait_monitor *w)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
}

static void deinit(struct wait_monitor *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int wait_monitor_start(const struct settings *s, struct param_store *store,
                       const struct stop_signal *stop, struct wait_monitor **ret,
                       struct err *err)
{
    struct wait_monitor *w;
    int status;

    *ret = NULL;
    if (s->local)
        return 0;
    w = memory_alloc(sizeof *w);
    w->s = s;
    w->store = store;
    w->stop = stop;
    init_locks(w);
    status = -pthread_create(&w->thread, NULL, run, w);
    if (status) {
        deinit(w);
        return err_set(err, status, "the thread that watches waits cannot start: %s",
                       strerror(-status));
    }
    *ret = w;
    return 0;
}

void wait_monitor_close(struct wait_monitor *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    deinit(w);
}
