/*
 * Locks the state of a job's rank in --state-dir: DIR/JOB.RANK.lock, for one process at a time. The lock ends with the
 * process, however that ends.
 */
#ifndef WORKER_STATE_LOCK_H
#define WORKER_STATE_LOCK_H

#include <stdint.h>

#include "common/status.h"

/* Makes the folder if need be. *ret_fd is the caller's to close. -EBUSY: another process has it; -errno. */
int state_lock(const char *dir, const char *job, uint32_t rank, int *ret_fd, struct err *err)
    MUST_CHECK;

#endif
