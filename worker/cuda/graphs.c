#include "worker/cuda/graphs.h"

/* One that is in flight is freed when it is done. */
static void clear(struct graph *graph)
{
    if (graph->exec)
        (void)cudaGraphExecDestroy(graph->exec);
    *graph = (struct graph){ 0 };
}

void graphs_clear(struct graphs *g)
{
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        clear(&g->at[i]);
}

struct graph *graphs_find(struct graphs *g, uint32_t set, uint64_t key)
{
    struct graph *oldest = &g->at[0];

    for (uint32_t i = 0; i < GRAPHS_MAX; i++) {
        struct graph *graph = &g->at[i];

        if (graph->key == key && graph->set == set) {
            graph->used = ++g->clock;
            return graph;
        }
        if (graph->used < oldest->used)
            oldest = graph;
    }
    clear(oldest);
    *oldest = (struct graph){ .set = set, .key = key, .used = ++g->clock };
    return oldest;
}

void graphs_end_capture(struct graph *g, cudaStream_t record, bool failed)
{
    cudaGraph_t captured = NULL;

    g->is_refused = cudaStreamEndCapture(record, &captured) != cudaSuccess || failed ||
                    cudaGraphInstantiate(&g->exec, captured, 0) != cudaSuccess;
    if (g->is_refused)
        g->exec = NULL;
    if (captured)
        (void)cudaGraphDestroy(captured);
}
