/*
 * A pool of the memory of batches: host memory of the model's device, from which its copies are fastest
 * (dlrm_host_alloc()). Such an allocation may take long, and a loader lives for an epoch or a validation. So memory
 * that a loader releases is pooled for the next loader. Sizes are rounded up to powers of two, so that pooled memory
 * fits later requests.
 */
#ifndef WORKER_BATCH_MEMORY_H
#define WORKER_BATCH_MEMORY_H

#include "worker/data/batch.h"
#include "worker/model/dlrm.h"

struct batch_memory;

/* The model is borrowed for life. */
struct batch_memory *batch_memory_new(struct dlrm *model);

/* All its memory has been released. NULL is fine. */
void batch_memory_free(struct batch_memory *m);

/* Lives as long as m. */
const struct batch_allocator *batch_memory_of_batches(const struct batch_memory *m);

#endif
