/*
 * Drops the tables of a trial's job on all servers. Where a standby has taken over, the command goes to that one.
 */
#ifndef WORKER_TUNE_JOB_DROP_H
#define WORKER_TUNE_JOB_DROP_H

#include "worker/settings.h"

/* s: of the search; of the token and certificates that have been read. PS_EDENIED: the role may not drop. */
int job_drop(const struct settings *s, const char *job, struct err *err) MUST_CHECK;
/* Whether it could: nothing is changed. */
int job_drop_check(const struct settings *s, const char *job, struct err *err) MUST_CHECK;

#endif
