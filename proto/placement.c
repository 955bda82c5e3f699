#include "proto/placement.h"

#include <stdio.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* the state's size, so that it can stand on the stack */
#include <xxhash.h>

uint64_t placement_map_id(uint32_t shards_per_node, char *const *nodes, uint32_t n_nodes)
{
    XXH3_state_t state;
    char number[16];
    int n_bytes = snprintf(number, sizeof number, "%u", shards_per_node);

    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, number, (size_t)n_bytes);
    for (uint32_t i = 0; i < n_nodes; i++) {
        XXH3_64bits_update(&state, "\n", 1);
        XXH3_64bits_update(&state, nodes[i], strlen(nodes[i]));
    }
    return XXH3_64bits_digest(&state);
}
