/*
 * What the workers of a job have reported of their training (proto/learning.h), and its curve: points from the job's
 * first step to its last one. Numbers for people; nothing here changes a row, a clock or a lease.
 *
 * A curve has LEARNING_POINTS_MAX points at most. When it is full, neighbours are merged two by two, and later points
 * take twice as many samples each: it always shows the whole run. Samples, not time, part the points, so a pause costs
 * none. A job that starts afresh begins a new curve.
 *
 * A report that counts is an event of the shard (shard_events.h): the log, a checkpoint and a standby have it.
 */
#ifndef SERVER_CORE_LEARNING_H
#define SERVER_CORE_LEARNING_H

#include "server/core/job.h"

#define LEARNING_POINT_MS 200u  /* reports of several workers within it make one point */
#define LEARNING_REPORT_MS 250u /* between two reports of a worker that count, on average, */
#define LEARNING_SHARE_MS 20u   /* and at least so long times the number of workers; */
#define LEARNING_BURST 8u       /* so many of them at once */
#define LEARNING_UNIX_MS_MAX (UINT64_C(1) << 53)

struct snapshot_writer;
struct snapshot_reader;

/* May one more report of this worker count now? If so, it is counted as one. */
bool learning_may_report(struct worker *worker, uint64_t now_ms);

/* Makes the job's curve, unless it is there. -ENOMEM. */
int learning_open(struct job *job) MUST_CHECK;

/* The report counts. The job has its curve, and nothing is wrong with the report; min_clock is the job's,
 * unix_ms at most LEARNING_UNIX_MS_MAX. */
void learning_add(struct worker *worker, const struct learning_report *report,
                  uint64_t min_clock, uint64_t unix_ms);

/* The job starts afresh: its workers' reports are zeroed by the caller. */
void learning_reset(struct job *job);

void learning_summarise(const struct job *job, struct learning_summary *ret);

/* All of a job as bytes; snapshot_meta.h has the format. */
void learning_encode(const struct job *job, struct snapshot_writer *w);
/* The job has its workers. src is bad, or -ENOMEM. */
int learning_decode(struct job *job, struct snapshot_reader *src) MUST_CHECK;

#endif
