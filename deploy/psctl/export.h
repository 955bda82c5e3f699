/*
 * psctl export PATH[,PATH...] --out PATH: tables as arrays, of all shards and nodes together.
 *
 *     safetensors   PATH is one file; its metadata says of each table what it is
 *     npy           PATH is a directory: a file for each array, and tables.json, which says the same and names
 *                   the files. What is no letter, digit, dot, minus or underscore in a name becomes %XX.
 */
#ifndef DEPLOY_PSCTL_EXPORT_H
#define DEPLOY_PSCTL_EXPORT_H

#include "deploy/psctl/options.h"
#include "deploy/psctl/tensor_files.h"
#include "server/core/shard.h"

/*
 * A table in memory as arrays (tensor_files.h):
 *
 *     table      arrays
 *     sparse     NAME.keys [n] i64, ascending; NAME.weight [n, dim] f32, row i being of keys[i]
 *     dense      NAME [n_floats] f32
 *     state      NAME.state.X, shaped as the weights; one number for a row: [n], of a dense table [blocks]
 *                X: momentum and lars b, adagrad, rowwise_adagrad and sm3 s, adam and lamb m and v, adamw m, v and t,
 *                lion m and t, ftrl z and n, came m and f (server/core/optimizer_type.h). Of t, and of the s of
 *                rowwise_adagrad and sm3, a row has one;
 *                s of sm3_matrix is its r and c, f is r, c, R and C of came: [n, floats], or [blocks, floats]
 *
 * Keys are u64 in psd; the same 64 bits are written as i64, which all of PyTorch can read. Weights are written as
 * fp32 whatever they are stored as.
 */
#define EXPORT_STATES_MAX 3u
#define EXPORT_N_MAX \
    (2u + EXPORT_STATES_MAX) /* of one table: keys, weights, those of its state */

struct export_item {
    int64_t key;
    const struct row *row; /* borrowed */
};

/* The source of one array. */
struct export_source {
    const struct export_arrays *arrays; /* borrowed */
    uint32_t first, n_floats; /* of a row: weights are 0 to dim, state stands behind */
};

struct export_arrays {
    const struct shard_table *table; /* borrowed */
    struct export_item *items;       /* owned: all rows, by key */
    uint64_t n_items;
    float *floats; /* owned: of one row */
    uint32_t n_state;
    struct export_source sources[EXPORT_N_MAX];
    struct tensor_array tensors[EXPORT_N_MAX];
    uint32_t n_tensors;
};

/* What the arrays of an optimizer's state are called behind the table's name: EXPORT_STATES_MAX, NULL where there is
 * none. */
const char *const *export_state_names(enum table_spec_optim optim);

/* How many of them there are. */
uint32_t export_n_states(enum table_spec_optim optim);

/* Does array i of them have a float for each weight, and so the weights' shape? Others may be as wide as a row. */
bool export_state_is_as_weights(enum table_spec_optim optim, uint32_t i);

/* The floats of a row that array i of them has. */
uint32_t export_state_width(const struct table_spec *spec, uint32_t i);

enum export_extent { EXPORT_WEIGHTS, EXPORT_WITH_STATE };

/* `a` must not move, and the shard not change, while its tensors are in use. Untouched blocks of a dense table get
 * their initial row. -ENOMEM. */
int export_init(struct export_arrays *a, struct shard *shard, uint32_t table_id,
                enum export_extent extent, struct err *err) ON_SHARD MUST_CHECK;

/* A zeroed one is fine. */
void export_deinit(struct export_arrays *a);

int export_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
