/*
 * One process at a time uses the state of a job's rank in --state-dir: a lock on DIR/JOB.RANK.lock,
 * which ends with the process, however that ends.
 */
#ifndef WORKER_CLAIM_H
#define WORKER_CLAIM_H

#include "common/base.h"
#include "common/status.h"

struct claim;

/* Makes the folder if need be. -EBUSY: another process has it; -errno. */
int claim_take(const char *dir, const char *job, uint32_t rank, struct claim **ret,
               struct err *err) MUST_CHECK;

/* NULL is fine. */
void claim_drop(struct claim *c);

#endif
