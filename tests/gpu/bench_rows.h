/* What a batch's rows cost beside a step: duplicate keys removed, the CPU and the device side by side, rows of other
 * widths than the model's made as wide, and the host's part of a step on several devices. */
#ifndef TESTS_GPU_BENCH_ROWS_H
#define TESTS_GPU_BENCH_ROWS_H

#include <stdio.h>

#include "worker/data/batch.h"

/* Writes lines of kind "dedup", "project" and "parts" about the batch, which has been deduped. Ends the program where the device's
 * rows are others than the CPU's. */
void bench_rows_run(FILE *out, struct batch *batch);

#endif
