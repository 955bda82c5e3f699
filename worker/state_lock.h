/*
 * One process at a time uses the state of a job's rank in --state-dir: a lock on DIR/JOB.RANK.lock,
 * which ends with the process, however that ends.
 */
#ifndef WORKER_STATE_LOCK_H
#define WORKER_STATE_LOCK_H

#include "common/base.h"
#include "common/status.h"

struct state_lock;

/* Makes the folder if need be. -EBUSY: another process has it; -errno. */
int state_lock_take(const char *dir, const char *job, uint32_t rank, struct state_lock **ret,
                    struct err *err) MUST_CHECK;

/* NULL is fine. */
void state_lock_drop(struct state_lock *c);

#endif
