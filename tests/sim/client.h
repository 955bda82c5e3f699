/*
 * The workers: each a process that trains with the product's client library, as worker/trainer.c does: pulls, computes, pushes,
 * goes on where the servers say when it was declared dead, and leaves. What it pulls is held against what the shards had.
 */
#ifndef TESTS_SIM_CLIENT_H
#define TESTS_SIM_CLIENT_H

#include "tests/sim/world.h"

struct client_state; /* of the process */

struct client {
    struct world *world; /* borrowed */
    uint32_t rank;
    bool is_scanning;
    struct process *process; /* NULL: it is down */
    uint64_t n_processes, clock;
    bool is_done;
};

void client_init(struct client *c, struct world *world, uint32_t rank);
void client_start(struct client *c);
/* It dies, and another one of its rank starts after a while. */
void client_crash(struct client *c);
/* It stands still: hears nothing and says nothing, and nobody knows why. */
void client_freeze(struct client *c, uint64_t for_us);

/* It stands still, and another process starts under its rank; for a while behind that both are there. */
void client_replace(struct client *c, uint64_t for_us);

/* The push that the running process is making has its number now, and is one of this incarnation (taps.c). */
void client_numbers(struct client *c, uint64_t incarnation);

/* What this process of the rank adds to a heartbeat that is not so: true, and of which incarnation. */
bool client_lies(const struct client *c, uint64_t *ret_incarnation);

#endif
