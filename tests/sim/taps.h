/* The product's functions that are observed while it runs (taps.c). */
#ifndef TESTS_SIM_TAPS_H
#define TESTS_SIM_TAPS_H

#include "tests/sim/world.h"

void taps_begin(struct world *w);

/* True if no push is under way: then the shard's rows must equal the model's. */
bool taps_is_idle(const struct shard_record *rec);

/* Drops all that is known of a process that has ended. */
void taps_process_ended(struct world *w, const struct process *p);

#endif
