/*
 * One job at a time for libuv's pool: what it reads and writes its owner leaves alone meanwhile.
 */
#ifndef SERVER_POOL_JOB_H
#define SERVER_POOL_JOB_H

#include <stdbool.h>
#include <uv.h>

#include "common/status.h"
#include "common/thread_role.h"

struct pool_job {
    uv_work_t work;
    bool is_running;
    bool is_abandoned; /* nobody wants to know its end any more */
    void *owner;       /* borrowed */
    void (*run)(void *owner);
    void (*done)(void *owner);
    struct err err; /* run's to set; zeroed before */
};

/* run: in the pool; then done: on the main thread, unless it is abandoned. */
void pool_job_start(struct pool_job *job, uv_loop_t *loop, void (*run)(void *owner),
                    void (*done)(void *owner)) ON_MAIN;

#endif
