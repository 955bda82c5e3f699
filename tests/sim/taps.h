/* What is listened to in the product while it runs (taps.c). */
#ifndef TESTS_SIM_TAPS_H
#define TESTS_SIM_TAPS_H

#include "tests/sim/world.h"

void taps_begin(struct world *w);

/* Every push is settled: the rows of the living shard are what the reference says. */
bool taps_is_idle(const struct shard_book *book);

/* The process is gone, and all that is known of it. */
void taps_forget(struct world *w, const struct process *p);

#endif
