/*
 * Pulls of rows as differences from those that this worker has (server/core/delta_rows.h): embedding rows and blocks of
 * dense tables that changed little since this worker's last pull of them cost few bytes or none.
 *
 *     pull_start   asks each shard for differences, with the number of the answer that the rows here are of
 *     pull_wait    adds the differences to the rows, and copies these to where they were asked for
 *
 * With a tolerance of 0 rows are those of a plain pull. Else each is as far from the server's as the tolerance says, by
 * root mean square, and what is missing comes with a later pull; with a mode of onebit, int8 or sparse a row that is
 * here may be further off while it catches up. Rows here take max_bytes at most; what has no space comes within the
 * tolerance or whole. Pulls with presence, state or versions, and those for validation, are plain pulls.
 */
#ifndef WORKER_PARAM_STORE_DELTA_H
#define WORKER_PARAM_STORE_DELTA_H

#include "worker/param_store.h"

struct param_store_delta_options {
    uint64_t max_bytes; /* of all rows together, at least 1 */
    struct param_store_delta_kind {
        float tolerance;
        enum section_delta_mode mode; /* of what differs by more (struct section_delta) */
    } rows, dense;                    /* of sparse tables, and of dense ones */
};

/* Takes `inner`, a store on servers (param_store_remote_open()). */
struct param_store *param_store_delta_new(struct param_store *inner,
                                          const struct param_store_delta_options *options);

#endif
