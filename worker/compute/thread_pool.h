/*
 * A few threads that share the tasks of one op.
 *
 *     caller     posts a job ── takes tasks ── waits for the last one ──> goes on
 *     others     spin ─ take tasks ─ spin for some microseconds ─ sleep until the next job
 *
 * Tasks are numbered and given in order to the next free thread. A thread that the kernel has
 * descheduled delays the others only while it has a task. The result of a task must depend on its number alone; then
 * neither the number of threads nor their timing changes the result of the op.
 */
#ifndef WORKER_COMPUTE_THREAD_POOL_H
#define WORKER_COMPUTE_THREAD_POOL_H

#include "common/base.h"

struct thread_pool;

/* thread: 0 (the caller's) to n_threads - 1, for scratch. */
typedef void thread_pool_task(void *job, uint32_t task, uint32_t thread);

/* n_threads: with the caller's own, 1 or more. A negative errno when a thread cannot be
 * started. Signals are blocked in the pool's threads. */
int thread_pool_new(uint32_t n_threads, struct thread_pool **ret_pool) MUST_CHECK;

/* NULL is fine. */
void thread_pool_free(struct thread_pool *p);

uint32_t thread_pool_n_threads(const struct thread_pool *p);

/* Runs the tasks and returns when all are done; the caller sees their writes. From one thread at a time; never from
 * inside a task. */
void thread_pool_run(struct thread_pool *p, uint32_t n_tasks, thread_pool_task *task,
                     void *job);

#endif
