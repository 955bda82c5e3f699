#include "worker/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "common/mem.h"
#include "worker/others.h"
#include "worker/setup.h"

#define LOOK_MS 100u
#define GIVE_UP_MS 500u /* of a wait, once a stop is asked for */
#define AFTER_MS 500u   /* until the servers' reports tell what ended a wait */
#define MS UINT64_C(1000000)
#define BEFORE_THE_STOP "the stop waits until the servers have what was pushed"

struct watch {
    const struct settings *s; /* borrowed, as the next two */
    struct store *store;
    const struct stop *stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closing; /* under the lock */

    /* The thread's own. */
    uint64_t told_ns;  /* of the wait under way, when it was last told; 0: it was not */
    uint32_t after_ms; /* since a wait that was told has ended; 0: that has been seen to */
    bool gave_up;      /* a stop has ended a wait */
    struct others_gone gone;
};

static uint64_t waiting_ns(const struct watch *w)
{
    struct ps_stats stats;

    w->store->ops->stats(w->store, &stats);
    return stats.waiting_ns;
}

static void tell_wait(struct watch *w, const char *what, uint64_t ns)
{
    char why[OTHERS_WHY_MAX];

    others_why(w->s, why);
    log_info("%s, %.1f s so far: %s", what, (double)ns * 1e-9, why);
}

/* Repeated, as the thread that pulls may be between two waits. */
static void give_up(struct watch *w, uint64_t ns)
{
    if (!w->store->ops->cancel)
        return;
    if (!w->gave_up)
        tell_wait(w, "the stop ends a wait", ns);
    w->gave_up = true;
    w->store->ops->cancel(w->store);
}

static void look_after(struct watch *w)
{
    w->after_ms = 0;
    others_tell_gone(w->s, &w->gone);
}

static void look(struct watch *w)
{
    const uint64_t ns = waiting_ns(w), every_ns = w->s->progress_every_ms * MS;

    if (ns >= GIVE_UP_MS * MS && stop_asked(w->stop))
        give_up(w, ns);
    if (ns >= every_ns && (ns < w->told_ns || ns - w->told_ns >= every_ns)) {
        w->told_ns = ns;
        tell_wait(w, w->gave_up ? BEFORE_THE_STOP : "waiting", ns);
    } else if (ns < w->told_ns) {
        w->told_ns = 0;
        w->after_ms = LOOK_MS;
    }
    if (w->after_ms && (w->after_ms += LOOK_MS) > AFTER_MS)
        look_after(w);
}

static struct timespec in_a_while(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)(LOOK_MS * MS);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static void *run(void *arg)
{
    struct watch *w = arg;
    struct timespec until;

    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        until = in_a_while();
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (w->closing)
            break;
        pthread_mutex_unlock(&w->lock);
        look(w);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    if (w->after_ms)
        look_after(w);
    return NULL;
}

static void init_locks(struct watch *w)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
}

static void deinit(struct watch *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int watch_start(const struct settings *s, struct store *store, const struct stop *stop,
                struct watch **ret, struct err *err)
{
    struct watch *w;
    int status;

    *ret = NULL;
    if (s->local)
        return 0;
    w = mem_alloc(sizeof *w);
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

void watch_close(struct watch *w)
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
