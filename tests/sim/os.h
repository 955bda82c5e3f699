/* What the product asks of the system (os.c). */
#ifndef TESTS_SIM_OS_H
#define TESTS_SIM_OS_H

#include "tests/sim/world.h"

/* Node 2's data directory is OS_DATA_DIR and 2: it stands on a disk of its own. */
#define OS_DATA_DIR "data"

void os_begin(struct world *w);

#endif
