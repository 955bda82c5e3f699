/*
 * CUDA graphs of a device: one for each buffer set and key, in three steps.
 *
 *     first time     the ops run, and allocate plans and scratch
 *     second time    they run, and are captured on a stream of their own
 *     from then on   the graph is launched
 *
 * A capture that fails costs nothing: the step has run, and its key is not captured again. The GRAPHS_MAX most
 * recently used keys are kept.
 */
#ifndef WORKER_CUDA_GRAPHS_H
#define WORKER_CUDA_GRAPHS_H

#include <stdbool.h>

#include "common/base.h"
#include "worker/cuda/cuda_runtime.h"

#define GRAPHS_MAX 32u

struct graph {
    uint32_t set;
    uint64_t key;         /* 0: free */
    uint64_t used;        /* when: graphs.clock */
    bool is_known;        /* has been run once */
    bool is_refused;      /* could not be captured */
    cudaGraphExec_t exec; /* owned; NULL: not captured yet */
};

struct graphs {
    uint64_t clock;
    struct graph at[GRAPHS_MAX];
};

/* Finds or adds the graph of buffer set and key; evicts the least recently used one. */
struct graph *graphs_find(struct graphs *g, uint32_t set, uint64_t key);

/* Makes the capture on `record` the graph. If `failed`, or if that fails, the graph is refused. */
void graphs_end_capture(struct graph *g, cudaStream_t record, bool failed);

/* Frees all graphs: their memory has moved. */
void graphs_clear(struct graphs *g);

#endif
