/* Places of jobs on a shard (MEMBERSHIP_N_JOBS_MAX): no single client takes all. */
#ifndef SERVER_REQUESTS_JOB_SHARE_H
#define SERVER_REQUESTS_JOB_SHARE_H

#include "server/core/membership.h"
#include "server/net/connection.h"

/* May this connection start the job, or its next run? `job`: as it is, or NULL. -ENOSPC: the connection, or its
 * address, has started as many that have workers as it may. */
int job_share_check(struct membership *membership, const struct connection *c,
                    const struct job *job, const char *name, struct err *err) ON_SHARD;

/* The job that has waited longest, without a live worker, for those that never came; or NULL. */
struct job *job_share_waiting(struct membership *membership) ON_SHARD;

#endif
