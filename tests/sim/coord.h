/*
 * The coordination service of a schedule: server/cluster/coord_mem.c on simulated time. Its answers come to a process on the
 * loop that asked, and to one that stands still once it goes on.
 */
#ifndef TESTS_SIM_COORD_H
#define TESTS_SIM_COORD_H

#include "server/coordination.h"
#include "tests/sim/world.h"

#define COORD_URL "etcd://10.0.0.99:2379/sim"

void coord_begin(struct world *w);
void coord_end(void);

/* For settings.open_coord. */
coord_open coord_open_simulated;

/* What passes is late or lost from now on, or nothing is. */
void coord_set_bad(bool is_bad);

/* Nothing passes between the service and this process, or between it and all (NULL). */
void coord_hold(const struct process *p, uint64_t for_us);

/* Watches read all keys anew. */
void coord_compact(void);

/* Does the claim of this group name the psd at `primary`? */
bool coord_names(uint32_t group, const char *primary);

/* Does the claim of this group say that the standby of the psd at `primary` is in sync? */
bool coord_says_in_sync(uint32_t group, const char *primary);

#endif
