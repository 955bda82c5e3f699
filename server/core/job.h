/* A job and its workers, as a shard knows them, and the request to join one. What they mean is in membership.h. */
#ifndef SERVER_CORE_JOB_H
#define SERVER_CORE_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/histogram.h"
#include "common/status.h"
#include "proto/learning.h"
#include "proto/table_spec.h"

#define MEMBERSHIP_N_JOBS_MAX 64u
#define MEMBERSHIP_N_WORKERS_MAX 1024u /* of one job */
#define MEMBERSHIP_N_BACKUPS_MAX 64u   /* of them */
/* Clocks stay below this, so clock + bound cannot wrap. */
#define MEMBERSHIP_CLOCK_END (UINT64_C(1) << 62)

/* Limits of numbers that a peer may send. The top of each range is out of a peer's reach, which leaves space for the
 * next steps and processes of its rank. Numbers in a log or a checkpoint were accepted once, and are not refused
 * again. */
#define MEMBERSHIP_CLOCK_FAR \
    (UINT64_C(1) << 53) /* beyond it a clock moves by MEMBERSHIP_CLOCK_STEP at most */
#define MEMBERSHIP_CLOCK_STEP (UINT64_C(1) << 16)
#define MEMBERSHIP_ACKED_MAX (UINT64_C(1) << 53)
#define MEMBERSHIP_INCARNATION_END (UINT64_C(1) << 63)
/* A fence above this counts only for the incarnation itself: else a rank whose number is near the end would have no
 * next one. It also cures data from before there was an end. */
#define MEMBERSHIP_FENCE_MAX (UINT64_C(1) << 62)

struct job;

#define WITNESSES_MAX 2u

/* Workers, by rank, that have said something of another one. More than two change nothing. */
struct witnesses {
    uint32_t n, ranks[WITNESSES_MAX];
};

#define LEARNING_POINTS_MAX 512u

/* What workers have reported of their training (learning.h). NaN: not known. */
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
    uint64_t kept_step; /* the same of its last report; of this process alone */
    uint32_t kept_epoch;
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
    uint32_t kept_epoch;         /* of the model that a worker has kept; 0: none */
    uint64_t kept_step;
};

enum worker_state { WORKER_EXPECTED, WORKER_LIVE, WORKER_LEFT, WORKER_DEAD, WORKER_LOST };

struct worker {
    struct job *job; /* borrowed */
    uint32_t rank;
    enum worker_state state;
    char name[64];
    uint64_t incarnation;
    uint64_t fenced_below; /* a smaller incarnation is refused */
    uint64_t clock;        /* steps finished */
    uint64_t last_seq;     /* of the last push that used up its number */
    uint64_t refused_seq;  /* of the last push refused, or 0: this incarnation's */
    int refused_status;
    uint64_t last_seen_ms;
    bool relays;           /* it carries suspicions between its shards */
    bool is_suspected;     /* LIVE, but nothing more of this incarnation is taken */
    uint64_t suspected_ms; /* since then */
    bool is_reported;      /* that it is suspected: to a worker that relays */
    /* LIVE, but its lease is over, and this shard hears no worker of the job that could tell others of it: nothing is
     * decided, and it is reported as dead. */
    bool is_given_up;
    uint64_t given_up_ms; /* since then */
    bool
        doubts_itself; /* its last heartbeat said that a shard has not answered it for a lease */
    /* Who says of this incarnation that a shard suspects it; and, since it is suspected here, that all refuse it. They
     * stay when it is DEAD, for the log. */
    struct witnesses reporters, agreed;
    /* Another shard suspects incarnation `barred`, the greatest of such, which has not joined here, and may not. */
    bool is_barred;
    uint64_t barred;
    /* Its next push arrived and was not committed (-ENOMEM, -EAGAIN, -EBUSY, PS_ESEQ). Until the push is
     * sent again, later messages of the worker do not count. */
    bool is_behind;
    /* Of its last join, in this process: messages of a connection that joined earlier no longer tell the
     * worker's position. */
    uint64_t join_number;
    bool resumed; /* its last join was a reconnect of the same incarnation */
    /* It has joined since this process serves: nothing of it was lost since, so the shard knows its last push. */
    bool is_known;
    uint64_t
        n_lost; /* of its last join: pushes that had been acknowledged to it and are not here */
    /* Of this incarnation, since this process began; a join that is repeated gets the same. */
    uint64_t lost_first, lost_last; /* the last such pushes; 0: none */
    /* Clocks that the others went on for while it was away: its clock was moved up by so many in all. As far as this
     * process and the log since the checkpoint know. */
    uint64_t n_skipped;
    struct learning_worker learning;
};

struct job {
    char name[TABLE_SPEC_NAME_MAX];
    uint64_t run; /* a number of its own for each time that a job started (afresh) */
    enum table_spec_mode mode; /* async, ssp, bsp */
    uint32_t bound;
    uint32_t n_workers;
    uint32_t
        n_backups; /* of lock step: a clock is complete without so many of those that count */
    struct worker *workers; /* owned, n_workers, by rank */
    /* Pushes of clocks below this have changed rows; of later ones, none has. */
    uint64_t applied_end;
    uint64_t started_ms, join_deadline_ms;
    uint64_t n_fenced, n_deaths, staleness_violations;
    uint64_t n_lost;    /* the sum of its workers' */
    uint64_t parked_ms; /* that pulls have waited, since this process began; for the report */
    uint64_t opener;    /* connection_worker.opener of the join that started it; 0: not known */
    uint64_t host;      /* connection.host of the same; 0: not known */
    struct histogram staleness; /* clocks that answered pulls were ahead of min clock; owned */
    struct learning_curve *curve; /* owned; NULL: no worker has reported yet */
};

/* A join request. */
struct membership_join {
    const char *job;
    uint32_t rank, n_workers;
    uint64_t incarnation;
    enum table_spec_mode mode;
    uint32_t bound;     /* of TABLE_SPEC_MODE_SSP; else it says nothing */
    uint32_t n_backups; /* of TABLE_SPEC_MODE_BSP; else 0 */
    uint64_t clock;     /* steps that it has finished */
    /* Its last push that this shard acknowledged, maybe before a restart: the next one is the
     * one behind it. */
    uint64_t last_acked;
    const char *name;
    bool relays; /* not in the log */
};

#endif
