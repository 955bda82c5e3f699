/*
 * The records of a compute: for each slot and key a graph, in three steps.
 *
 *     first time     the ops run, so that everything that they need is made: plans, scratch
 *     second time    they run, and are captured on a stream of their own
 *     from then on   the graph is launched
 *
 * So a capture that fails costs nothing: the step has been made, and its key is never tried again. The GRAPHS_MAX keys that
 * were used last are kept.
 */
#ifndef WORKER_CUDA_GRAPHS_H
#define WORKER_CUDA_GRAPHS_H

#include <stdbool.h>

#include "common/base.h"
#include "worker/cuda/rt.h"

#define GRAPHS_MAX 32u

struct graph {
    uint32_t slot;
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

/* That of slot and key; new ones take the place of the one that was used longest ago. */
struct graph *graphs_find(struct graphs *g, uint32_t slot, uint64_t key);

/* What has been captured on `record` becomes the graph; or it is refused, as it is if something was `amiss` with it. */
void graphs_end_capture(struct graph *g, cudaStream_t record, bool amiss);

/* Forgets all: what they were captured with has moved. */
void graphs_clear(struct graphs *g);

#endif
