/* Threads, locks, conditions and the pool: fibers that wait for each other. */
#include <assert.h>
#include <stdlib.h>

#include "tests/sim/uv_state.h"

#define SPURIOUS_ONE_IN 60u /* a condition's wait ends for no reason */
#define POOL_THREADS 4u

struct line {
    struct fiber *first, *last;
};

struct mutex {
    struct fiber *owner;
    struct line line;
};

struct cond {
    struct line line;
};

_Static_assert(sizeof(struct mutex) <= sizeof(uv_mutex_t), "it stands in its place");
_Static_assert(sizeof(struct cond) <= sizeof(uv_cond_t), "it stands in its place");

static struct mutex *mutex_of(uv_mutex_t *uv)
{
    return (struct mutex *)(void *)uv;
}

static struct cond *cond_of(uv_cond_t *uv)
{
    return (struct cond *)(void *)uv;
}

static void line_up(struct line *l, struct fiber *f)
{
    f->line = l;
    f->next_in_line = NULL;
    if (l->first)
        l->last->next_in_line = f;
    else
        l->first = f;
    l->last = f;
}

static struct fiber *take_first(struct line *l)
{
    struct fiber *f = l->first;

    if (!f)
        return NULL;
    l->first = f->next_in_line;
    f->line = NULL;
    f->next_in_line = NULL;
    return f;
}

static void leave_line(struct line *l, struct fiber *f)
{
    struct line rest = { 0 };
    struct fiber *other;

    while ((other = take_first(l)) != NULL)
        if (other != f)
            line_up(&rest, other);
    *l = rest;
    for (other = l->first; other; other = other->next_in_line)
        other->line = l;
}

/* --- locks --- */

int uv_mutex_init(uv_mutex_t *mutex)
{
    *mutex_of(mutex) = (struct mutex){ 0 };
    return 0;
}

void uv_mutex_destroy(uv_mutex_t *mutex)
{
    assert(!mutex_of(mutex)->owner);
}

static void lock(struct mutex *m)
{
    struct fiber *self = machine.running;

    if (!m->owner) {
        m->owner = self;
        return;
    }
    assert(m->owner != self);
    line_up(&m->line, self);
    while (m->owner != self)
        (void)fiber_wait(MACHINE_NEVER);
}

static void unlock(struct mutex *m)
{
    m->owner = take_first(&m->line);
    if (m->owner)
        fiber_wake(m->owner);
}

void uv_mutex_lock(uv_mutex_t *mutex)
{
    if (!machine.running)
        return;
    fiber_yield();
    lock(mutex_of(mutex));
}

int uv_mutex_trylock(uv_mutex_t *mutex)
{
    if (!machine.running)
        return 0;
    fiber_yield();
    if (mutex_of(mutex)->owner)
        return UV_EBUSY;
    lock(mutex_of(mutex));
    return 0;
}

void uv_mutex_unlock(uv_mutex_t *mutex)
{
    if (!machine.running)
        return;
    assert(mutex_of(mutex)->owner == machine.running);
    unlock(mutex_of(mutex));
    fiber_yield();
}

/* --- conditions --- */

int uv_cond_init(uv_cond_t *cond)
{
    *cond_of(cond) = (struct cond){ 0 };
    return 0;
}

void uv_cond_destroy(uv_cond_t *cond)
{
    assert(!cond_of(cond)->line.first);
}

void uv_cond_signal(uv_cond_t *cond)
{
    struct fiber *f = take_first(&cond_of(cond)->line);

    if (f)
        fiber_wake(f);
}

void uv_cond_broadcast(uv_cond_t *cond)
{
    while (cond_of(cond)->line.first)
        uv_cond_signal(cond);
}

/* False: the time was up. */
static bool wait(struct cond *c, struct mutex *m, uint64_t until_us)
{
    struct fiber *self = machine.running;
    bool is_woken;

    if (dice_once_in(&machine.dice, SPURIOUS_ONE_IN))
        until_us = machine_now_us(), is_woken = true;
    else
        is_woken = false;
    line_up(&c->line, self);
    unlock(m);
    is_woken = fiber_wait(until_us) || is_woken;
    if (self->line == &c->line)
        leave_line(&c->line, self);
    lock(m);
    return is_woken;
}

void uv_cond_wait(uv_cond_t *cond, uv_mutex_t *mutex)
{
    (void)wait(cond_of(cond), mutex_of(mutex), MACHINE_NEVER);
}

int uv_cond_timedwait(uv_cond_t *cond, uv_mutex_t *mutex, uint64_t timeout_ns)
{
    uint64_t until_us = machine_now_us() + timeout_ns / 1000 + 1;

    if (timeout_ns > UINT64_MAX / 2)
        until_us = MACHINE_NEVER;
    return wait(cond_of(cond), mutex_of(mutex), until_us) ? 0 : UV_ETIMEDOUT;
}

/* --- threads --- */

int uv_thread_create(uv_thread_t *thread, uv_thread_cb run, void *arg)
{
    *thread = (uv_thread_t)(uintptr_t)fiber_new(process_current(), run, arg);
    fiber_yield();
    return 0;
}

int uv_thread_join(uv_thread_t *thread)
{
    struct fiber *f = (struct fiber *)(uintptr_t)*thread; /* NOLINT: it was one */

    f->joiner = machine.running;
    while (!f->has_ended)
        (void)fiber_wait(MACHINE_NEVER);
    return 0;
}

unsigned uv_available_parallelism(void)
{
    return 2;
}

/* --- the pool --- */

static void run_work(void *arg)
{
    struct request *r = arg;
    uv_work_t *work = (uv_work_t *)(void *)r->req;
    struct process *p = process_current();

    while (p->n_jobs == POOL_THREADS)
        fiber_sleep(50);
    p->n_jobs++;
    work->work_cb(work);
    p->n_jobs--;
    request_done(loop_of(work->loop), r, 0);
}

int uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb after)
{
    struct request *r = calloc(1, sizeof *r);

    assert(r && run);
    work->loop = loop;
    work->work_cb = run;
    *r = (struct request){ .req = (uv_req_t *)(void *)work,
                           .kind = REQUEST_WORK,
                           .on_done.work = after };
    loop_of(loop)->n_requests++;
    (void)fiber_new(process_current(), run_work, r);
    return 0;
}
