/*
 * A thread that does one job again and again, beside its owner, who says when:
 *
 *     IDLE  --- side_thread_ask() --->  ASKED  --->  RUNS  --->  IDLE
 *           <-- side_thread_cancel() --
 *
 * The owner calls all of this from one thread at a time. What the job has written the owner sees behind
 * side_thread_cancel() and side_thread_wait().
 */
#ifndef WORKER_CACHE_SIDE_THREAD_H
#define WORKER_CACHE_SIDE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base.h"

enum side_thread_state { SIDE_THREAD_IDLE, SIDE_THREAD_ASKED, SIDE_THREAD_RUNS };

struct side_thread {
    void (*run)(void *arg); /* arg: borrowed */
    void *arg;
    pthread_t thread;
    bool is_there; /* it has been started */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum side_thread_state state; /* under the lock, as is_over */
    bool is_over;
};

/* -errno: it cannot be started; then all below do nothing. Signals are blocked in it. */
int side_thread_start(struct side_thread *t, void (*run)(void *arg), void *arg) MUST_CHECK;
/* Waits for a job that runs. */
void side_thread_end(struct side_thread *t);

/* The job is to run once. It is IDLE. */
void side_thread_ask(struct side_thread *t);

/* A job that has not begun is not done; one that runs is waited for. */
void side_thread_cancel(struct side_thread *t);

/* The job is done. */
void side_thread_wait(struct side_thread *t);

#endif
