/*
 * Duplicate keys of large batches removed on the model's device instead of on a reading thread (data_loader.h). It
 * makes the same numbers as batch_dedup(), so where it cannot, the reading thread does it, and no batch differs.
 */
#ifndef WORKER_KEY_DEDUPER_H
#define WORKER_KEY_DEDUPER_H

#include "worker/data/batch.h"
#include "worker/model/dlrm.h"

/* Of so many keys the device takes less time than a reading thread (worker/cuda/README.md). */
#define KEY_DEDUPER_KEYS_MIN 32768u

struct key_deduper;

/* NULL: the device has no such operation. Batches of fewer keys than keys_min stay with the reading threads. The model
 * is borrowed for life. */
struct key_deduper *key_deduper_new(struct dlrm *model, uint32_t keys_min);

/* What it opened is closed. NULL is fine. */
void key_deduper_free(struct key_deduper *d);

/* For loaders; lives as long as d. NULL of NULL. */
const struct batch_deduper *key_deduper_of_batches(const struct key_deduper *d);

#endif
