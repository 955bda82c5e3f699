/* The kernels of cpu_tiles.h, and which of them run here. */
#ifndef WORKER_COMPUTE_CPU_TILES_CATALOG_H
#define WORKER_COMPUTE_CPU_TILES_CATALOG_H

#include "worker/compute/cpu_tiles.h"

/* The i-th kernel, faster ones first; NULL past the last. */
const struct cpu_tiles *cpu_tiles_catalog_at(uint32_t i);

/* The first for such products that runs here, or NULL. */
const struct cpu_tiles *cpu_tiles_catalog_best(enum compute_products products);

#endif
