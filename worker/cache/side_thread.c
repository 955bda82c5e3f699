#include "worker/cache/side_thread.h"

#include <assert.h>
#include <signal.h>

static void *thread_main(void *arg)
{
    struct side_thread *t = arg;

    pthread_mutex_lock(&t->lock);
    while (!t->is_over) {
        if (t->state != SIDE_THREAD_ASKED) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        t->state = SIDE_THREAD_RUNS;
        pthread_mutex_unlock(&t->lock);
        t->run(t->arg);
        pthread_mutex_lock(&t->lock);
        t->state = SIDE_THREAD_IDLE;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int side_thread_start(struct side_thread *t, void (*run)(void *arg), void *arg)
{
    sigset_t all, before;
    int status;

    *t = (struct side_thread){ .run = run, .arg = arg };
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = -pthread_create(&t->thread, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->is_there = !status;
    return status;
}

void side_thread_end(struct side_thread *t)
{
    pthread_mutex_lock(&t->lock);
    t->is_over = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (t->is_there)
        pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
}

void side_thread_ask(struct side_thread *t)
{
    if (!t->is_there)
        return;
    pthread_mutex_lock(&t->lock);
    assert(t->state == SIDE_THREAD_IDLE);
    t->state = SIDE_THREAD_ASKED;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* Under the lock. */
static void wait_until_idle(struct side_thread *t)
{
    while (t->state != SIDE_THREAD_IDLE)
        pthread_cond_wait(&t->changed, &t->lock);
}

void side_thread_cancel(struct side_thread *t)
{
    pthread_mutex_lock(&t->lock);
    if (t->state == SIDE_THREAD_ASKED)
        t->state = SIDE_THREAD_IDLE;
    wait_until_idle(t);
    pthread_mutex_unlock(&t->lock);
}

void side_thread_wait(struct side_thread *t)
{
    pthread_mutex_lock(&t->lock);
    wait_until_idle(t);
    pthread_mutex_unlock(&t->lock);
}
