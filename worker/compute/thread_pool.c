#include "worker/compute/thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/memory.h"

/* Turns of a spin: some 10 us. Two ops follow each other faster than that; whoever waits longer
 * sleeps, so that readers and servers on the same cores get them. */
enum { SPINS = 256 };

struct member {
    pthread_t id;
    struct thread_pool *pool; /* borrowed */
    uint32_t thread;
};

struct thread_pool {
    uint32_t n_threads, n_started;
    struct member *members; /* owned, n_threads - 1 */

    /* The job. Written while n_done == n_tasks, read by who holds a task. */
    thread_pool_task *task;
    void *job;
    uint32_t n_tasks;

    /* Tasks that nobody has taken yet: below, in the lower half; above it, the number of the
     * job, so that a late thread cannot take a task of the next one unseen. */
    _Alignas(64) atomic_uint_fast64_t left;
    _Alignas(64) atomic_uint n_done;
    _Alignas(64) atomic_uint n_asleep; /* members on `wake` */
    atomic_bool caller_asleep;         /* on `done` */
    atomic_bool closing;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
};

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool has_work(struct thread_pool *p)
{
    return (uint32_t)atomic_load(&p->left) > 0;
}

static bool is_done(struct thread_pool *p)
{
    return atomic_load(&p->n_done) == p->n_tasks;
}

/* Takes tasks until none is left. */
static void work(struct thread_pool *p, uint32_t thread)
{
    uint_fast64_t left = atomic_load(&p->left);

    while ((uint32_t)left > 0) {
        uint32_t n_tasks;

        if (!atomic_compare_exchange_weak(&p->left, &left, left - 1))
            continue;
        n_tasks = p->n_tasks;
        p->task(p->job, n_tasks - (uint32_t)left, thread);
        if (atomic_fetch_add(&p->n_done, 1) + 1 == n_tasks && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
        left = atomic_load(&p->left);
    }
}

/* Until there is work: true; or the pool closes. */
static bool wait_for_work(struct thread_pool *p)
{
    for (int i = 0; i < SPINS && !has_work(p); i++)
        pause_core();
    if (has_work(p))
        return true;
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (!has_work(p) && !atomic_load(&p->closing))
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->lock);
    return has_work(p) || !atomic_load(&p->closing);
}

static void *member_main(void *arg)
{
    const struct member *m = arg;

    while (wait_for_work(m->pool))
        work(m->pool, m->thread);
    return NULL;
}

static int start_member(struct thread_pool *p, uint32_t i)
{
    sigset_t all, before;
    int status;

    p->members[i] = (struct member){ .pool = p, .thread = i + 1 };
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(&p->members[i].id, NULL, member_main, &p->members[i]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    p->n_started += !status;
    return -status;
}

int thread_pool_new(uint32_t n_threads, struct thread_pool **ret_pool)
{
    struct thread_pool *p = aligned_alloc(_Alignof(struct thread_pool), sizeof *p);
    int status = 0;

    if (!p)
        abort();
    *p = (struct thread_pool){ .n_threads = n_threads };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->members = memory_alloc(n_threads * sizeof *p->members);
    for (uint32_t i = 0; i + 1 < n_threads && !status; i++)
        status = start_member(p, i);
    if (status)
        thread_pool_free(p);
    else
        *ret_pool = p;
    return status;
}

void thread_pool_free(struct thread_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->closing, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_started; i++)
        pthread_join(p->members[i].id, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p->members);
    free(p);
}

uint32_t thread_pool_n_threads(const struct thread_pool *p)
{
    return p->n_threads;
}

/* Sleepers are told after the job stands; who goes to sleep looks at the job after it has
 * said so. One of the two sees the other (both orders are sequentially consistent). */
static void post(struct thread_pool *p, uint32_t n_tasks, thread_pool_task *task, void *job)
{
    p->task = task;
    p->job = job;
    p->n_tasks = n_tasks;
    atomic_store(&p->n_done, 0);
    atomic_store(&p->left, ((atomic_load(&p->left) >> 32) + 1) << 32 | n_tasks);
    if (atomic_load(&p->n_asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

static void wait_until_done(struct thread_pool *p)
{
    for (int i = 0; i < SPINS && !is_done(p); i++)
        pause_core();
    if (is_done(p))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_asleep, true);
    while (!is_done(p))
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_asleep, false);
    pthread_mutex_unlock(&p->lock);
}

void thread_pool_run(struct thread_pool *p, uint32_t n_tasks, thread_pool_task *task, void *job)
{
    if (p->n_threads == 1 || n_tasks < 2) {
        for (uint32_t i = 0; i < n_tasks; i++)
            task(job, i, 0);
        return;
    }
    post(p, n_tasks, task, job);
    work(p, 0);
    wait_until_done(p);
}
