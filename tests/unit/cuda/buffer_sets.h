/* Steps of step.h in the slots of a rig: pinned memory, copies, graphs. */
#ifndef TESTS_UNIT_CUDA_SLOTS_H
#define TESTS_UNIT_CUDA_SLOTS_H

#include "tests/unit/cuda/step.h"

struct slots {
    struct rig rig;
    struct step host[DEVICE_SLOTS], device[DEVICE_SLOTS];
};

void slots_open(struct slots *s, uint64_t seed, enum device_products products);
void slots_close(struct slots *s);

/* Inputs of the n-th step of a test: bags of its own, or those of all. */
enum slots_bags { SLOTS_OWN_BAGS, SLOTS_SAME_BAGS };

void slots_draw(struct step *s, uint64_t seed, uint64_t n, enum slots_bags bags);

/* Copies in, ops or their record, copies out. True: it was a record. */
bool slots_start(struct slots *s, uint32_t slot, uint64_t key);

/* A copy of the host's side, with memory of its own: free(copy.at[0]). */
struct step slots_copy(const struct step *host);

/* Steps 0 .. n - 1, one after the other, without records: what all others are held to. */
struct step *slots_one_by_one(uint64_t seed, enum device_products products,
                              enum slots_bags bags, uint32_t n);

void slots_free(struct step *done, uint32_t n);

/* The same steps in all slots at once, under `key`. How many came out otherwise. */
uint32_t slots_at_once(struct slots *s, uint64_t seed, uint64_t key, enum slots_bags bags,
                       const struct step *want, uint32_t n);

#endif
