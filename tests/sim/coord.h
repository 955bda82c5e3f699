/*
 * The coordination service of a schedule: server/cluster/coord_mem.c on simulated time. Its answers come to a process on the
 * loop that asked, and to one that stands still once it goes on.
 */
#ifndef TESTS_SIM_COORD_H
#define TESTS_SIM_COORD_H

#include "server/coordination.h"
#include "tests/sim/world.h"

#define COORD_URL "etcd://10.0.0.99:2379/sim"

/* on_misled: of a member of a pair (coord_n_misled()). */
void coord_begin(struct world *w, void (*on_misled)(struct node *n));
void coord_end(void);

/* For settings.open_coord. */
coord_open coord_open_simulated;

/* What passes is late or lost from now on, or nothing is. */
void coord_set_bad(bool is_bad);

/* Nothing passes between the service and this process, or between it and all (NULL). */
void coord_hold(const struct process *p, uint64_t for_us);

/* The service is away for a while: for this process, or for all. Now and then it has compacted its keys before. */
void coord_go_away(const struct process *p, struct dice *d);

/* The service loses its keys within that time: they are deleted, or it comes back empty, or from a copy of now. */
void coord_lose_keys(struct dice *d, uint64_t within_us);

/* That has happened. */
bool coord_has_lost_keys(void);

/* How often somebody has claimed over what an older copy had, not knowing that it was one. */
uint64_t coord_n_misled(void);

/* Of the claim that was made last, whatever the service has lost since: nobody has taken over before another one is made.
 * Does it name the psd at `primary` of this group as the primary? */
bool coord_names(uint32_t group, const char *primary);

/* ... and does it say that its standby is in sync? */
bool coord_says_in_sync(uint32_t group, const char *primary);

#endif
