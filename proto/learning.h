/*
 * How a worker's training goes: what a heartbeat carries of it (Learning in ps.proto), and a shard keeps with the job
 * (server/core/learning.h). For people alone: nothing is decided by it.
 */
#ifndef PROTO_LEARNING_H
#define PROTO_LEARNING_H

#include <math.h>
#include <stdbool.h>

#include "common/base.h"

/* Stages of a step, in the order of worker/stage_times.h: read, fetch, servers, compute, deliver, network. */
#define LEARNING_STAGES 6u

#define LEARNING_SAMPLES_MAX (UINT64_C(1) << 53)
#define LEARNING_RATE_MAX 1e15f
#define LEARNING_LOSS_MAX 1e30f

struct learning_report {
    uint64_t samples; /* that this rank has trained on */
    uint32_t steps;   /* since the last report; 0: loss is not known */
    float loss;       /* their mean */
    float samples_per_s;
    uint16_t busy[LEARNING_STAGES]; /* thousandths of the time */
    uint32_t n_validations;         /* so far; 0: the next three say nothing */
    float auc, logloss;
    bool has_one_class; /* of its rows: there is no AUC */
    /* The model that --keep best has left: the pass, from 1, and the step of its validation; epoch 0: none. Not in the
     * log: known again with the next report. */
    uint32_t kept_epoch;
    uint64_t kept_step;
};

static inline const char *learning_stage_name(uint32_t stage)
{
    static const char *const names[LEARNING_STAGES] = { "read",    "fetch",   "servers",
                                                        "compute", "deliver", "network" };

    return names[stage];
}

/* False also for NaN. */
static inline bool learning_is_within(float value, float max)
{
    return value >= 0 && value <= max;
}

/* What is wrong with a report that a peer has sent, as "samples: ..."; NULL: nothing. Static storage. */
static inline const char *learning_report_wrong(const struct learning_report *r)
{
    if (r->samples > LEARNING_SAMPLES_MAX)
        return "samples: expected at most 2^53";
    if (r->steps && !learning_is_within(r->loss, LEARNING_LOSS_MAX))
        return "loss: expected a number from 0 to 1e30";
    if (!learning_is_within(r->samples_per_s, LEARNING_RATE_MAX))
        return "samples_per_s: expected a number from 0 to 1e15";
    for (uint32_t i = 0; i < LEARNING_STAGES; i++)
        if (r->busy[i] > 1000)
            return "busy: expected thousandths, up to 1000";
    if (r->kept_step > LEARNING_SAMPLES_MAX)
        return "kept_step: expected at most 2^53";
    if (!r->n_validations)
        return NULL;
    if (!r->has_one_class && !learning_is_within(r->auc, 1))
        return "auc: expected a number from 0 to 1";
    return learning_is_within(r->logloss, LEARNING_LOSS_MAX)
               ? NULL
               : "logloss: expected a number from 0 to 1e30";
}

#endif
