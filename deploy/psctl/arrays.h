/*
 * A table in memory as arrays (tensor.h):
 *
 *     table      arrays
 *     sparse     NAME.keys [n] i64, ascending; NAME.weight [n, dim] f32, row i being of keys[i]
 *     dense      NAME [n_floats] f32
 *     state      NAME.state.X, shaped as the weights; of row-wise Adagrad [n], of a dense table [blocks]
 *                X: momentum b, adagrad and rowwise_adagrad s, adam m and v, ftrl z and n (server/core/optim.h)
 *
 * Keys are u64 in psd; the same 64 bits are told as i64, which all of PyTorch can read. Weights are told as
 * fp32 whatever they are stored as.
 */
#ifndef DEPLOY_PSCTL_ARRAYS_H
#define DEPLOY_PSCTL_ARRAYS_H

#include "deploy/psctl/tensor.h"
#include "server/core/shard.h"

#define ARRAYS_N_MAX 4u /* of one table: keys, weights, two of state */

struct arrays_item {
    int64_t key;
    const struct row *row; /* borrowed */
};

/* What one of the arrays is made of. */
struct arrays_source {
    const struct arrays *arrays; /* borrowed */
    uint32_t first, n_floats;    /* of a row: weights are 0 to dim, state stands behind */
};

struct arrays {
    const struct shard_table *table; /* borrowed */
    struct arrays_item *items;       /* owned: all rows, by key */
    uint64_t n_items;
    float *floats; /* owned: of one row */
    uint32_t n_state;
    struct arrays_source sources[ARRAYS_N_MAX];
    struct tensor tensors[ARRAYS_N_MAX];
    uint32_t n_tensors;
};

enum arrays_extent { ARRAYS_WEIGHTS, ARRAYS_WITH_STATE };

/* `a` must not move, and the shard not change, while its tensors are in use. Blocks of a dense table that nobody has
 * touched get the row that they would begin with. -ENOMEM. */
int arrays_init(struct arrays *a, struct shard *shard, uint32_t table_id,
                enum arrays_extent extent, struct err *err) ON_SHARD MUST_CHECK;

/* A zeroed one is fine. */
void arrays_deinit(struct arrays *a);

#endif
