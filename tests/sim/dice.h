/* Random numbers that are a function of a seed and of how many were asked for before. */
#ifndef TESTS_SIM_DICE_H
#define TESTS_SIM_DICE_H

#include <stdbool.h>

#include "common/hash.h"

struct dice {
    uint64_t seed, n;
};

static inline struct dice dice_of(uint64_t seed, uint64_t stream)
{
    return (struct dice){ .seed = hash_mix2(seed, stream) };
}

/* 0 to n_sides - 1. */
static inline uint64_t dice_roll(struct dice *d, uint64_t n_sides)
{
    return hash_mix2(d->seed, d->n++) % n_sides;
}

/* least to most, both included. */
static inline uint64_t dice_from(struct dice *d, uint64_t least, uint64_t most)
{
    return least + dice_roll(d, most - least + 1);
}

/* Once in n. */
static inline bool dice_once_in(struct dice *d, uint64_t n)
{
    return dice_roll(d, n) == 0;
}

#endif
