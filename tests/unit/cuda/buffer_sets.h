/* Steps of step.h in the buffer sets of a rig: pinned memory, copies, graphs. */
#ifndef TESTS_UNIT_CUDA_BUFFER_SETS_H
#define TESTS_UNIT_CUDA_BUFFER_SETS_H

#include "tests/unit/cuda/step.h"

struct buffer_sets {
    struct rig rig;
    struct step host[DEVICE_BUFFER_SETS], device[DEVICE_BUFFER_SETS];
};

void buffer_sets_open(struct buffer_sets *s, uint64_t seed, enum device_products products);
void buffer_sets_close(struct buffer_sets *s);

/* Inputs of the n-th step of a test: bags of its own, or those of all. */
enum buffer_sets_bags { BUFFER_SETS_OWN_BAGS, BUFFER_SETS_SAME_BAGS };

void buffer_sets_draw(struct step *s, uint64_t seed, uint64_t n, enum buffer_sets_bags bags);

/* Copies in, ops or their record, copies out. True: it was a record. */
bool buffer_sets_start(struct buffer_sets *s, uint32_t set, uint64_t key);

/* A copy of the host's side, with memory of its own: free(copy.at[0]). */
struct step buffer_sets_copy(const struct step *host);

/* Steps 0 .. n - 1, one after the other, without records: what all others are held to. */
struct step *buffer_sets_one_by_one(uint64_t seed, enum device_products products,
                                    enum buffer_sets_bags bags, uint32_t n);

void buffer_sets_free(struct step *done, uint32_t n);

/* The same steps in all buffer sets at once, under `key`. How many came out otherwise. */
uint32_t buffer_sets_at_once(struct buffer_sets *s, uint64_t seed, uint64_t key,
                             enum buffer_sets_bags bags, const struct step *want, uint32_t n);

#endif
