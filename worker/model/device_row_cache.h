/*
 * Embedding rows that stay in the device's memory from step to step, so that only new rows cross the bus.
 *
 *     host     versions[place]        the row at each place once all uploads so far are done; 0: none
 *     device   kept[place][dim]
 *
 * The caller knows which rows have not changed since an earlier step, and gives each row a place and a version
 * (dlrm_step.versions). So there is no look-up and no eviction here. A place beyond the device's memory keeps nothing.
 *
 * Uploads run in the order of the calls (device_ops.upload_rows), so the device's rows agree with the host's versions.
 * After a failure they may not, and the cache is emptied.
 *
 * A replica has the rows' optimizer states beside them, and changes both at the end of a step as the servers will
 * (dlrm_replicate_rows()): then one step at a time is in flight, and a row's version stays as long as the row does.
 */
#ifndef WORKER_MODEL_DEVICE_ROW_CACHE_H
#define WORKER_MODEL_DEVICE_ROW_CACHE_H

#include "worker/compute/device.h"
#include "worker/model/dlrm_types.h"

/* row_upload.how of a buffer set's step. */
struct device_row_cache_plan {
    uint32_t *host;   /* owned, of the host */
    uint32_t *device; /* owned, of the device */
    uint32_t cap;
    bool in_flight;
    uint64_t n_failures; /* the cache's, at its upload */

    /* Of a replica: a head, and the places of the rows that are changed. */
    struct device_row_cache_update {
        uint32_t n;
        struct row_update_factors factors;
    } * host_update, *device_update; /* owned, of the host and of the device */
    uint32_t update_cap;
    struct row_update update; /* of the step in flight */
};

struct device_row_cache {
    const struct device_ops *ops; /* borrowed, as c */
    struct compute *c;
    uint32_t dim, n_places; /* 0: no row is kept */
    float *kept;            /* owned, of the device */
    bool is_replica;
    enum row_update_rule rule;
    uint32_t n_states;  /* of a row */
    float *states;      /* owned, of the device */
    uint64_t *versions; /* owned */
    struct device_row_cache_plan plans[DLRM_BUFFER_SETS];
    uint64_t n_failures;       /* how often the cache was emptied */
    uint64_t n_copied, n_kept; /* rows */
};

void device_row_cache_init(struct device_row_cache *r, const struct device_ops *ops,
                           struct compute *c, uint32_t dim);

/* Accepts a zeroed struct. No step is in flight. */
void device_row_cache_deinit(struct device_row_cache *r);

/* dlrm_keep_rows() */
int device_row_cache_keep(struct device_row_cache *r, size_t n_bytes) MUST_CHECK;

/* dlrm_release_rows() */
void device_row_cache_release(struct device_row_cache *r);

/* dlrm_replicate_rows() */
int device_row_cache_replicate(struct device_row_cache *r, const struct dlrm_replica *replica)
    MUST_CHECK;

/* For a step of n rows in a buffer set at rest. -ENOMEM. */
int device_row_cache_reserve(struct device_row_cache *r, uint32_t set, uint32_t n) MUST_CHECK;

/* For n rows that are changed. *ret_moved: the arguments of device_row_cache_update() are others now. -ENOMEM. */
int device_row_cache_reserve_update(struct device_row_cache *r, uint32_t set, uint32_t n,
                                    bool *ret_moved) MUST_CHECK;

/* The step's rows on their way to `device`, [n_unique][dim]; space has been reserved. */
void device_row_cache_put(struct device_row_cache *r, uint32_t set,
                          const struct dlrm_step *step, float *device);

/* The op that changes the step's n rows, of what is encoded at `bytes`; space for n has been reserved. Lives until the
 * next. */
const struct row_update *device_row_cache_update(struct device_row_cache *r, uint32_t set,
                                                 const struct dlrm_step *step, uint32_t n,
                                                 const uint8_t *bytes);

/* Ends the buffer set's step with the status of its wait. A failure empties the cache and fails every step in flight,
 * whose rows may never have arrived. Steps end in the order of device_row_cache_put(). Returns the step's status. */
int device_row_cache_finish(struct device_row_cache *r, uint32_t set, int status) MUST_CHECK;

#endif
