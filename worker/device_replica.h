/*
 * The rows of a job's only worker in a GPU's memory, with the states of their optimizer (--device-cache): the device
 * changes them at the end of each step as the servers will, so that neither they nor their copies on the host are
 * needed by the next step.
 *
 *     row cache (param_store_exact_cache.h)    which rows the device has, and where; brings those that are missing
 *     device (dlrm_replicate_rows())           the rows; gathers those of a batch, and makes the optimizer's step
 *     push                                     as without it: encoded by the device, sent to the servers
 */
#ifndef WORKER_DEVICE_REPLICA_H
#define WORKER_DEVICE_REPLICA_H

#include "worker/param_store.h"
#include "worker/settings.h"
#include "worker/step_buffers.h"

struct device_replica {
    struct dlrm *model; /* borrowed, as store; NULL: there is no replica */
    struct param_store *store;
    uint32_t table;
    uint32_t row_bytes; /* of the device's memory */
};

/* Before the first pull. `table` is the first of embedding rows, and `spec` its. `shape` gets what steps need.
 * Without a replica all is as before; if a device and a row cache are there, a line says why. Over a store that reuses
 * rows the device keeps those instead, unchanged. */
void device_replica_open(struct device_replica *r, const struct settings *s,
                         struct param_store *store, uint32_t table,
                         const struct table_spec *spec, struct step_buffers_shape *shape);

/* A step begins: adds to `ret` what the device needs of it. The push's section of the table has been encoded for the
 * device. -ENOMEM: nothing has changed. */
int device_replica_begin(const struct device_replica *r, struct step_buffers *step,
                         const struct ps_push_section *section, struct dlrm_step *ret,
                         struct err *err) MUST_CHECK;

#endif
