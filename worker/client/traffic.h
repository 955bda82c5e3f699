/* Rows that a client has pulled and pushed, and the bytes of their values by codec. Any thread counts, any reads. */
#ifndef WORKER_CLIENT_TRAFFIC_H
#define WORKER_CLIENT_TRAFFIC_H

#include <stdatomic.h>

#include "worker/client/ps_types.h"

/* Zeroed: nothing yet. */
struct traffic {
    _Atomic uint64_t rows_pulled, rows_pushed;
    _Atomic uint64_t values_pulled[CODEC_ID_END], values_pushed[CODEC_ID_END]; /* bytes */
};

/* A section of a table whose rows have dim floats. */
void traffic_pulled(struct traffic *t, const struct ps_pull_section *section, uint32_t dim);
void traffic_pushed(struct traffic *t, const struct ps_push_section *section, uint32_t dim);

/* Sets the members of the same names. */
void traffic_read(const struct traffic *t, struct ps_stats *ret);

#endif
