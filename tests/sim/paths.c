#include "tests/sim/paths.h"

#include <string.h>

#include "tests/sim/machine.h"

#define N_PATHS 64u /* more than a schedule holds at a time (plan.c) */

struct path {
    const void *from; /* borrowed */
    uint32_t node;
    unsigned directions;
    uint64_t until_us;
};

static struct path paths[N_PATHS];
static uint32_t n_paths;

void paths_begin(void)
{
    memset(paths, 0, sizeof paths);
    n_paths = 0;
}

void paths_hold(const void *from, uint32_t node, unsigned directions, uint64_t until_us)
{
    paths[n_paths++ % N_PATHS] = (struct path){ from, node, directions, until_us };
}

uint64_t paths_held_until_us(const void *from, uint32_t node, enum path_direction direction)
{
    uint64_t until_us = 0;

    for (uint32_t i = 0; i < N_PATHS && i < n_paths; i++) {
        const struct path *p = &paths[i];

        if (p->from == from && p->node == node && p->directions & direction &&
            p->until_us > machine_now_us() && p->until_us > until_us)
            until_us = p->until_us;
    }
    return until_us;
}
