/* Steps of a world of rows (row_cache_world.h) on the emulated device, in a way to be held to copies of all rows. */
#ifndef TESTS_UNIT_CUDA_ROW_STEPS_H
#define TESTS_UNIT_CUDA_ROW_STEPS_H

#include "tests/unit/model/row_cache_world.h"

/* A run that copies all rows, and one of this way, under a scheduler that keeps nothing but what it must: none fails, and
 * both have the same bits. What the second one has copied and kept. */
struct dlrm_row_counts row_steps_same(const struct world *w, const struct world_way *way,
                                      uint64_t seed);

/* Ops that do not wait for the rows have other bits in some run. Skipped on a real device. */
void row_steps_lost_wait(const struct world_way *way, uint64_t seed);

#endif
