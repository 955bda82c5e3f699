#include "server/pool_job.h"

#include <assert.h>
#include <stdlib.h>

static void on_run(uv_work_t *work)
{
    struct pool_job *job = work->data;

    enter_pool();
    job->run(job->owner);
}

static void on_done(uv_work_t *work, int canceled)
{
    struct pool_job *job = work->data;

    (void)canceled;
    enter_main();
    job->is_running = false;
    if (!job->is_abandoned)
        job->done(job->owner);
}

void pool_job_start(struct pool_job *job, uv_loop_t *loop, void (*run)(void *owner),
                    void (*done)(void *owner))
{
    assert(!job->is_running);
    job->work.data = job;
    job->run = run;
    job->done = done;
    job->err = (struct err){ 0 };
    job->is_running = true;
    if (uv_queue_work(loop, &job->work, on_run, on_done))
        abort(); /* only for a NULL callback */
}
