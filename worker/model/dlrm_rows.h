/*
 * Embedding rows that stay in the device's memory from step to step, so that only those cross the bus that are new there.
 *
 *     host     versions[place]        what stands there when all uploads that were asked for are done; 0: nothing
 *     device   kept[place][dim]
 *
 * Which rows of a step are the same as before is the caller's to know, who gives each a place and a version (dlrm_step.h);
 * so nothing is looked up here and no row has to go. A place that is beyond the device's memory is none.
 *
 * Uploads run in the order in which they were asked for (compute_ops.upload_rows), so what the host has noted is what the device finds.
 * After a failure that is in doubt: everything is forgotten.
 */
#ifndef WORKER_MODEL_DLRM_ROWS_H
#define WORKER_MODEL_DLRM_ROWS_H

#include "worker/compute/compute.h"
#include "worker/model/dlrm_step.h"

/* How each row of a slot's step comes: row_upload.how. */
struct dlrm_rows_plan {
    uint32_t *host;   /* owned, of the host */
    uint32_t *device; /* owned, of the device */
    uint32_t cap;
    bool has_step;     /* put, and not judged */
    uint64_t n_doubts; /* when it was put */
};

struct dlrm_rows {
    const struct compute_ops *ops; /* borrowed, as c */
    struct compute *c;
    uint32_t dim, n_places; /* 0: no row stays */
    float *kept;            /* owned, of the device */
    uint64_t *versions;     /* owned */
    struct dlrm_rows_plan plans[DLRM_SLOTS];
    uint64_t n_doubts;         /* how often everything was forgotten */
    uint64_t n_copied, n_kept; /* rows */
};

void dlrm_rows_init(struct dlrm_rows *r, const struct compute_ops *ops, struct compute *c,
                    uint32_t dim);

/* Accepts a zeroed struct. No step is under way. */
void dlrm_rows_deinit(struct dlrm_rows *r);

/* dlrm_keep_rows() */
int dlrm_rows_keep(struct dlrm_rows *r, size_t n_bytes) MUST_CHECK;

/* For a step of n rows in a slot at rest. -ENOMEM: there is none now. */
int dlrm_rows_reserve(struct dlrm_rows *r, uint32_t slot, uint32_t n) MUST_CHECK;

/* The step's rows on their way to `device`, [n_unique][dim]; room has been reserved. */
void dlrm_rows_put(struct dlrm_rows *r, uint32_t slot, const struct dlrm_step *step,
                   float *device);

/* What the wait for a slot has told. A failure forgets everything, and is that of all steps that were put and are not judged, too:
 * they may have been given rows that never came. Returns the step's status. Steps are judged in the order in which they were
 * put. */
int dlrm_rows_judge(struct dlrm_rows *r, uint32_t slot, int status) MUST_CHECK;

#endif
