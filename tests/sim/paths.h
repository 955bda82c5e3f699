/*
 * Paths between who dials, a worker's process or the other member of a pair, and a node on which nothing passes for a while,
 * in one direction or in both: neither end hears of it, and all other paths work.
 */
#ifndef TESTS_SIM_PATHS_H
#define TESTS_SIM_PATHS_H

#include <stdbool.h>
#include <stdint.h>

enum path_direction { PATH_TO_NODE = 1, PATH_TO_DIALLER = 2 }; /* or both */

void paths_begin(void);

/* `from`: process_place(), borrowed for the schedule. `directions`: of enum path_direction. node: of its address. */
void paths_hold(const void *from, uint32_t node, unsigned directions, uint64_t until_us);

/* When something that arrives now may pass; 0: now. */
uint64_t paths_held_until_us(const void *from, uint32_t node, enum path_direction direction);

#endif
