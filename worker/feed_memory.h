/*
 * What the batches of feeds lie in: host memory of the model's device, from which its copies are fastest
 * (dlrm_host_alloc()). A device may take long to give such memory, and a feed lives for an epoch or a validation;
 * so what a feed gives back is kept for the next one. Sizes are rounded up to powers of two, so that what was given back
 * fits what is asked for.
 */
#ifndef WORKER_FEED_MEMORY_H
#define WORKER_FEED_MEMORY_H

#include "worker/data/batch.h"
#include "worker/model/dlrm.h"

struct feed_memory;

/* The model is borrowed for life. */
struct feed_memory *feed_memory_new(struct dlrm *model);

/* What it gave has come back. NULL is fine. */
void feed_memory_free(struct feed_memory *m);

/* Lives as long as m. */
const struct batch_memory *feed_memory_of_batches(const struct feed_memory *m);

#endif
