/*
 * A run whose rows come with places and versions, as a store that keeps rows would tell them (worker/param_store.h): keys are read again, change,
 * lose their places to others, and find none. What a device should have kept is told by a plain array.
 */
#ifndef TESTS_UNIT_MODEL_ROW_CACHE_WORLD_H
#define TESTS_UNIT_MODEL_ROW_CACHE_WORLD_H

#include <errno.h>

#include "tests/unit/model/fixture.h"

enum { WORLD_STEPS = 14, WORLD_SAMPLES = 12, WORLD_KEYS = WORLD_SAMPLES + 3 };

struct world_step {
    struct batch batch;
    float *rows; /* [n_unique][dim], as they are */
    uint64_t *versions;
    uint32_t *places;
    uint32_t n_there; /* rows that stay on a device of n_places */
    bool is_there[WORLD_KEYS];
};

struct world {
    struct dlrm_config config;
    struct fixture_rng rng;
    uint32_t n_places; /* of the device; the store has WORLD_KEYS */
    uint64_t n_versions;
    uint64_t version_of[WORLD_KEYS];
    uint32_t place_of[WORLD_KEYS];
    bool is_taken[WORLD_KEYS];
    uint64_t device[WORLD_KEYS]; /* the version at each place: the trivial reference */
    struct world_step steps[WORLD_STEPS];
};

/* What a run ends in. */
struct world_end {
    int status[WORLD_STEPS];
    double losses[WORLD_STEPS];
    float *row_grads[WORLD_STEPS], *grads[WORLD_STEPS];
    size_t n_dense;
    struct dlrm_row_counts counts;
};

static inline size_t world_row_bytes(const struct world *w)
{
    return w->config.dim * sizeof(float);
}

void world_init(struct world *w, uint32_t dim, uint32_t n_places, uint64_t seed);
uint64_t world_n_rows(const struct world *w);
uint64_t world_n_there(const struct world *w);
void world_deinit(struct world *w);

/* How a run is made. */
struct world_way {
    const struct device_ops *ops;
    bool keeps;  /* the device keeps rows, of the world's number of places */
    bool pulls;  /* rows come as servers send them: in parts, fp32, in another order */
    bool blanks; /* the host's side of rows that are there is NaN: nobody may look at it */
};

/* The model, all steps, and nothing left. A model that cannot be made: false. */
bool world_play(const struct world *w, const struct world_way *way, struct world_end *end);

void world_end_free(struct world_end *end);

/* Of steps that were made: how many have other bits. */
uint32_t world_n_wrong(const struct world *w, const struct world_end *got,
                       const struct world_end *want);

uint32_t world_n_failed(const struct world_end *end);

#endif
