/* Threads that share the tasks of one call, as libps and the caches take them from their caller (thread_pool_run() of
 * worker/compute/thread_pool.h). Tasks are independent of each other, and of who runs them. */
#ifndef WORKER_CLIENT_TASK_THREADS_H
#define WORKER_CLIENT_TASK_THREADS_H

#include "common/base.h"

typedef void task_threads_task(void *job, uint32_t task, uint32_t thread);

struct task_threads {
    uint32_t n; /* 0: none; the caller runs all tasks */
    void (*run)(void *arg, uint32_t n_tasks, task_threads_task *task, void *job);
    void *arg; /* borrowed */
};

static inline void task_threads_run(const struct task_threads *t, uint32_t n_tasks,
                                    task_threads_task *task, void *job)
{
    if (t->n)
        t->run(t->arg, n_tasks, task, job);
    else
        for (uint32_t i = 0; i < n_tasks; i++)
            task(job, i, 0);
}

#endif
