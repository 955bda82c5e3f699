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

#include "proto/learning.h"

#define LEARNING_POINTS_MAX 512u
#define LEARNING_POINT_MS 200u  /* reports of several workers within it make one point */
#define LEARNING_REPORT_MS 250u /* between two reports of a worker that count, on average, */
#define LEARNING_SHARE_MS 20u   /* and at least so long times the number of workers; */
#define LEARNING_BURST 8u       /* so many of them at once */
#define LEARNING_UNIX_MS_MAX (UINT64_C(1) << 53)

struct job;
struct worker;
struct snapshot_writer;
struct snapshot_reader;

/* NaN: not known. */
struct learning_point {
    uint64_t unix_ms; /* of its last report */
    uint64_t clock;   /* the job's min clock then */
    uint64_t samples; /* of all workers, up to then */
    uint64_t weight;  /* samples that loss is the mean of; 0: it is not known */
    float samples_per_s, loss;
    float auc, logloss; /* of the last validation in it */
};

struct learning_curve {
    uint64_t step_samples; /* that a point takes at least */
    /* The first report of the last point, which may grow. Its time may be after, if the clock was set back since. */
    uint64_t began_ms, began_samples;
    uint32_t n;
    struct learning_point points[LEARNING_POINTS_MAX];
};

/* Of a worker. NaN: not known. */
struct learning_worker {
    uint64_t unix_ms;       /* of its last report; 0: none */
    uint64_t incarnation;   /* that sent it */
    uint64_t validated_ms;  /* when its last validation came; 0: none did */
    uint64_t samples;       /* never less than before */
    uint64_t weight;        /* samples that loss and busy are of */
    uint32_t n_validations; /* as its last report says */
    float samples_per_s, loss, auc, logloss;
    uint16_t busy[LEARNING_STAGES]; /* thousandths */
    uint64_t due_ms;                /* of the limit to reports; of this process alone */
};

/* Of a job, at one moment. */
struct learning_summary {
    uint64_t unix_ms; /* of the newest report; 0: none, and the rest says nothing */
    uint64_t samples;
    float samples_per_s;         /* of its live workers */
    float loss;                  /* of the last reports, by their samples; NaN: not known */
    float auc, logloss;          /* of the newest validation; NaN: none */
    float busy[LEARNING_STAGES]; /* 0 to 1; by samples */
};

/* May one more report of this worker count now? If so, it is counted as one. */
bool learning_may_report(struct worker *worker, uint64_t now_ms);

/* Makes the job's curve, unless it is there. -ENOMEM. */
int learning_open(struct job *job) MUST_CHECK;

/* The report counts. The job has its curve, and nothing is wrong with the report; unix_ms is at most
 * LEARNING_UNIX_MS_MAX. */
void learning_add(struct worker *worker, const struct learning_report *report,
                  uint64_t unix_ms);

/* The job starts afresh: its workers' reports are zeroed by the caller. */
void learning_reset(struct job *job);

void learning_summarise(const struct job *job, struct learning_summary *ret);

/* All of a job as bytes; snapshot_meta.h has the format. */
void learning_encode(const struct job *job, struct snapshot_writer *w);
/* The job has its workers. src is bad, or -ENOMEM. */
int learning_decode(struct job *job, struct snapshot_reader *src) MUST_CHECK;

#endif
