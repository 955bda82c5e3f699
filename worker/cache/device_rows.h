/*
 * Which rows of one table a device has in its memory, and where: the host's half of a replica (cache/replica.h) whose
 * rows and optimizer states are the device's, and which the device changes itself (dlrm_replicate_rows()).
 *
 *     arrives from the servers, or is made here -> waits on the host -> read by the pull of its batch: copied to its
 *     place on the device -> changed there by every step -> evicted: nothing goes back, the servers have it
 *
 *     turn      1 device_rows_missing()   of the keys of a pull; what is missing arrives: device_rows_insert()
 *               2 device_rows_read()      their places; what has arrived
 *               3 device_rows_update()    the step begins: places of the rows that its push changes
 *               4 device_rows_pushed()
 *
 * Rows wanted in this turn are not evicted. Where all are, a new row gets no place, and the servers are
 * asked for it again after the push.
 */
#ifndef WORKER_CACHE_DEVICE_ROWS_H
#define WORKER_CACHE_DEVICE_ROWS_H

#include "worker/client/ps_types.h"

struct device_rows;

#define DEVICE_ROWS_NO_PLACE UINT32_MAX

/* The change that the push of a step will make of the rows that the device has. */
struct device_rows_step {
    uint32_t table;
    uint64_t clock; /* of the push */
    uint32_t n;
    const uint64_t *keys; /* of the push, ascending */
    uint32_t
        *places; /* filled: [n], or DEVICE_ROWS_NO_PLACE: the device does not have the row */

    /* Filled: what all rows share, by the table's optimizer (struct row_update_factors). */
    float rate, epsilon, weight_decay, beta1, rest1, beta2, rest2, root_scale;
};

struct device_rows_options {
    uint32_t n_places;
    uint32_t dim, n_states; /* floats of a row, and of its states behind it */
    /* A row that was held or pushed to is not held any more. */
    void (*lost)(void *arg, uint64_t key);
    void *arg; /* borrowed */
};

/* True if the device knows the table's optimizer and all else that a push does to a row. */
bool device_rows_suits(const struct table_spec *spec);

/* Fills what rows of this table share at its t-th push. */
void device_rows_fill_step(struct device_rows_step *step, const struct table_spec *spec,
                           uint64_t t);

/* NULL: no memory. */
struct device_rows *device_rows_new(const struct device_rows_options *options);
void device_rows_free(struct device_rows *d);

/* Removes every row, and says of none that it is lost. -ENOMEM: none can be held. */
int device_rows_clear(struct device_rows *d) MUST_CHECK;

/* False: rows of the last turn were read and no step has begun with them, so the device may not have them. */
bool device_rows_begin_turn(struct device_rows *d) MUST_CHECK;

/* replica_missing(). */
uint32_t device_rows_missing(struct device_rows *d, const uint64_t *keys, uint32_t n,
                             uint64_t *ret_keys);

/* A row that is missing, of the turn's pull, or, `is_ahead`, of the next one: that one needs a place, or is lost. */
int device_rows_insert(struct device_rows *d, uint64_t key, const void *payload, bool is_ahead)
    MUST_CHECK;

/* Fills a section whose missing rows have arrived. */
void device_rows_read(struct device_rows *d, const struct ps_pull_section *section);

/* Fills the places of ascending keys, or DEVICE_ROWS_NO_PLACE. Returns how many are neither the pull's nor
 * on the device: an answer under way may bring them as they were before the push. */
uint32_t device_rows_update(struct device_rows *d, const uint64_t *keys, uint32_t n,
                            uint32_t *ret_places);

void device_rows_pushed(struct device_rows *d);

uint64_t device_rows_n_rows(const struct device_rows *d);

#endif
