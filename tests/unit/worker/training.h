/* A run of the trainer on a device of the test's choice, with a store that counts (fake_store.h). */
#ifndef TESTS_UNIT_WORKER_TRAINING_H
#define TESTS_UNIT_WORKER_TRAINING_H

#include "tests/unit/worker/fake_store.h"

#include <stdlib.h>

#include "common/memory.h"
#include "tests/support/far_device.h"
#include "tests/unit/worker/click_log.h"
#include "worker/trainer.h"

static const struct far_device_plan training_late = { .late = true,
                                                      .replays = true,
                                                      .seed = 5 };

/* What a run ends in. */
struct training {
    bool is_killed; /* set before it: nothing is written at its end */
    struct ps_stats stats;
    int status, end_status; /* of the run; of what is written at its end */
    struct err err, late;
    uint64_t n_applied, bytes_of[FAKE_STEPS_MAX];
    uint64_t n_fences, n_samples;
    double loss_sum;
};

void training_run(const struct device_ops *ops, const struct param_store_ops *store,
                  const struct fake_plan *plan, const char *const *more, struct training *ret);
struct fake_plan training_plan(uint32_t n_permits);

static inline const struct device_ops *training_far(void)
{
    return far_device_ops(&device_cpu, &training_late);
}

void training_assert_same(const struct training *a, const struct training *b);

#endif
