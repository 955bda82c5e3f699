/*
 * One schedule, from its plan to its end: what goes wrong when, and what has to be true then.
 */
#ifndef TESTS_SIM_SCHEDULE_H
#define TESTS_SIM_SCHEDULE_H

#include <stdbool.h>

#include "common/base.h"

#define SCHEDULE_NEVER UINT64_MAX

struct schedule_config {
    uint64_t seed;
    bool is_traced;
    /* This node's process dies in file operation number die_at; SCHEDULE_NEVER: as the plan says. */
    uint32_t die_node;
    uint64_t die_at;
    bool die_loses_power; /* with its power */
};

struct schedule_facts {
    uint64_t digest, n_events, n_switches, n_recovered, n_checkpoints, n_records, n_pushes,
        n_sync_points, simulated_us, n_layouts, n_repeated, n_fenced, n_losses, n_misled;
    uint64_t n_ops[4]; /* of files, of each node */
    uint32_t n_nodes;
    bool ran_to_die_at;
};

/* Ends the program where a promise is broken. */
void schedule_run(const struct schedule_config *config, struct schedule_facts *ret);

#endif
